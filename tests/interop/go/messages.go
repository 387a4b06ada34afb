package main

import "github.com/golang/protobuf/proto"

// The messages of weir/v1/scanner.proto, as far as a scan needs them. On the wire a field of a oneof is an optional one.

type scanQuery struct {
	Table string `protobuf:"bytes,1,opt,name=table,proto3"`
}

type scanOpen struct {
	Source       int32      `protobuf:"varint,2,opt,name=source,proto3"`
	Query        *scanQuery `protobuf:"bytes,3,opt,name=query,proto3"`
	BatchRowsMax uint32     `protobuf:"varint,5,opt,name=batch_rows_max,proto3"`
	ResumeToken  []byte     `protobuf:"bytes,6,opt,name=resume_token,proto3"`
	StopAtEnd    bool       `protobuf:"varint,12,opt,name=stop_at_end,proto3"`
}

type demand struct {
	BytesLimit uint64 `protobuf:"varint,1,opt,name=bytes_limit,proto3"`
}

type scanRequest struct {
	Open   *scanOpen `protobuf:"bytes,1,opt,name=open,proto3"`
	Demand *demand   `protobuf:"bytes,2,opt,name=demand,proto3"`
}

// Whole, so that proto.Size is the length on the wire, which is what credit counts.
type rowBatch struct {
	RowOrdinal  uint64 `protobuf:"varint,1,opt,name=row_ordinal,proto3"`
	RowCount    uint32 `protobuf:"varint,2,opt,name=row_count,proto3"`
	Crc32c      uint32 `protobuf:"fixed32,3,opt,name=crc32c,proto3"`
	ResumeToken []byte `protobuf:"bytes,4,opt,name=resume_token,proto3"`
	StartOffset uint64 `protobuf:"varint,5,opt,name=start_offset,proto3"`
	EndOffset   uint64 `protobuf:"varint,6,opt,name=end_offset,proto3"`
	CommitEnd   bool   `protobuf:"varint,7,opt,name=commit_end,proto3"`
	Padding     []byte `protobuf:"bytes,14,opt,name=padding,proto3"`
	ArrowBatch  []byte `protobuf:"bytes,15,opt,name=arrow_batch,proto3"`
}

type scanEnd struct {
	Reason    int32  `protobuf:"varint,1,opt,name=reason,proto3"`
	Rows      uint64 `protobuf:"varint,2,opt,name=rows,proto3"`
	Digest    uint32 `protobuf:"fixed32,3,opt,name=digest,proto3"`
	EndOffset uint64 `protobuf:"varint,6,opt,name=end_offset,proto3"`
}

type scanResponse struct {
	Batch *rowBatch `protobuf:"bytes,2,opt,name=batch,proto3"`
	End   *scanEnd  `protobuf:"bytes,5,opt,name=end,proto3"`
}

func (m *scanQuery) Reset()    { *m = scanQuery{} }
func (m *scanOpen) Reset()     { *m = scanOpen{} }
func (m *demand) Reset()       { *m = demand{} }
func (m *scanRequest) Reset()  { *m = scanRequest{} }
func (m *rowBatch) Reset()     { *m = rowBatch{} }
func (m *scanEnd) Reset()      { *m = scanEnd{} }
func (m *scanResponse) Reset() { *m = scanResponse{} }

func (m *scanQuery) String() string    { return proto.CompactTextString(m) }
func (m *scanOpen) String() string     { return proto.CompactTextString(m) }
func (m *demand) String() string       { return proto.CompactTextString(m) }
func (m *scanRequest) String() string  { return proto.CompactTextString(m) }
func (m *rowBatch) String() string     { return proto.CompactTextString(m) }
func (m *scanEnd) String() string      { return proto.CompactTextString(m) }
func (m *scanResponse) String() string { return proto.CompactTextString(m) }

func (*scanQuery) ProtoMessage()    {}
func (*scanOpen) ProtoMessage()     {}
func (*demand) ProtoMessage()       {}
func (*scanRequest) ProtoMessage()  {}
func (*rowBatch) ProtoMessage()     {}
func (*scanEnd) ProtoMessage()      {}
func (*scanResponse) ProtoMessage() {}
