// A client of weir made of stock grpc-go. Its BDP estimator is on, as it comes: while no PING of its own is out, it sends
// a PING and a WINDOW_UPDATE for each DATA frame that arrives.
//
//	peer scan ENDPOINT TABLE CREDIT   each row in a batch of its own; CREDIT bytes demanded anew after each
//	peer resume ENDPOINT TABLE ROWS   the same; the connection is cut after so many rows, and a new one goes on
//	peer tail ENDPOINT TABLE ROWS     the same of the table's changes, up to where its log ends
//	peer watch ENDPOINT CALLS         so many health checks while a Watch is open
//
// Prints one line of JSON: what was found, and the status with which it ended.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/golang/protobuf/proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

const (
	scanPath = "/weir.v1.Scanner/Scan"
	liveKV   = 1
	changes  = 3
	callers  = 4
	patience = 500 * time.Second
)

type found struct {
	Rows     uint64 `json:"rows"`
	Ordinals bool   `json:"ordinals"` // each batch began where the one before it ended
	Overrun  uint64 `json:"overrun"`
	Reason   int32  `json:"reason"`
	EndRows  uint64 `json:"end_rows"`
	Digest   uint32 `json:"digest"`
	Offset   uint64 `json:"offset"`  // where the changes that came end
	Commits  bool   `json:"commits"` // each batch was one whole commit, and began where the one before it ended
	Calls    int    `json:"calls"`
	Status   string `json:"status"`
	Message  string `json:"message"`

	source int32
	token  []byte
}

// A channel, and the means to cut its connection as a broken line does.
func dial(endpoint string) (*grpc.ClientConn, func(), error) {
	var last net.Conn
	channel, err := grpc.Dial(endpoint, grpc.WithInsecure(), grpc.WithContextDialer(
		func(ctx context.Context, address string) (net.Conn, error) {
			connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
			last = connection
			return connection, err
		}))
	return channel, func() { last.Close() }, err
}

// Scan until the end, or until `rows` rows have come in all, if that is not 0.
func (f *found) scan(ctx context.Context, channel *grpc.ClientConn, table string, credit, rows uint64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	description := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	stream, err := channel.NewStream(ctx, description, scanPath)
	if err != nil {
		return err
	}
	query := &scanQuery{Table: table}
	open := &scanOpen{Source: f.source, Query: query, BatchRowsMax: 1, ResumeToken: f.token, StopAtEnd: f.source == changes}
	if err := stream.SendMsg(&scanRequest{Open: open}); err != nil {
		return err
	}
	var read, limit uint64
	for {
		if limit < read+credit {
			limit = read + credit
			if err := stream.SendMsg(&scanRequest{Demand: &demand{BytesLimit: limit}}); err != nil && err != io.EOF {
				return err
			}
		}
		response := &scanResponse{}
		if err := stream.RecvMsg(response); err != nil {
			return err
		}
		if batch := response.Batch; batch != nil {
			f.Ordinals = f.Ordinals && batch.RowOrdinal == f.Rows
			f.Commits = f.Commits && batch.CommitEnd && batch.StartOffset == f.Offset
			f.Offset = batch.EndOffset
			f.Rows += uint64(batch.RowCount)
			f.token = batch.ResumeToken
			read += uint64(proto.Size(response))
			if read > limit && read-limit > f.Overrun {
				f.Overrun = read - limit
			}
			if f.Rows == rows {
				return nil
			}
		}
		if end := response.End; end != nil {
			f.Reason, f.EndRows, f.Digest = end.Reason, end.Rows, end.Digest
			if err := stream.CloseSend(); err != nil {
				return err
			}
			if err := stream.RecvMsg(response); err != io.EOF {
				return fmt.Errorf("after the end: %v", err)
			}
			return nil
		}
	}
}

func (f *found) resume(ctx context.Context, endpoint, table string, rows uint64) error {
	channel, cut, err := dial(endpoint)
	if err != nil {
		return err
	}
	defer channel.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := f.scan(ctx, channel, table, 1, rows); err != nil {
		return err
	}
	cut()
	again, _, err := dial(endpoint)
	if err != nil {
		return err
	}
	defer again.Close()
	return f.scan(ctx, again, table, 1, 0)
}

// Make calls on one channel from several goroutines while a Watch stays open; the Watch must outlive them.
func (f *found) watch(ctx context.Context, channel *grpc.ClientConn, calls int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	health := grpc_health_v1.NewHealthClient(channel)
	request := &grpc_health_v1.HealthCheckRequest{}
	watch, err := health.Watch(ctx, request)
	if err != nil {
		return err
	}
	if _, err := watch.Recv(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		_, err := watch.Recv()
		ended <- fmt.Errorf("the watch ended: %v", err)
	}()
	var group sync.WaitGroup
	failed := make(chan error, callers)
	for caller := 0; caller < callers; caller++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for call := 0; call < calls/callers; call++ {
				if _, err := health.Check(ctx, request); err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	group.Wait()
	select {
	case err := <-failed:
		return err
	case err := <-ended:
		return err
	default:
		f.Calls = calls
		return nil
	}
}

func run(f *found, how, endpoint, table, number string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	count, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return err
	}
	if how == "tail" {
		f.source = changes
	}
	if how == "resume" || how == "tail" {
		return f.resume(ctx, endpoint, table, count)
	}
	channel, _, err := dial(endpoint)
	if err != nil {
		return err
	}
	defer channel.Close()
	if how == "watch" {
		return f.watch(ctx, channel, int(count))
	}
	return f.scan(ctx, channel, table, count, 0)
}

func main() {
	how, endpoint, table, number := os.Args[1], os.Args[2], os.Args[3], os.Args[len(os.Args)-1]
	f := &found{Ordinals: true, Commits: true, source: liveKV}
	err := run(f, how, endpoint, table, number)
	f.Status, f.Message = status.Code(err).String(), status.Convert(err).Message()
	if err := json.NewEncoder(os.Stdout).Encode(f); err != nil {
		panic(err)
	}
}
