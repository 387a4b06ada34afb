// A scan by someone who has Node, grpc-js and weir's .proto files.
//
//     node scan.js PROTO_ROOT ENDPOINT TABLE CREDIT [HOW]
//
// CREDIT is the window in bytes that Demand messages keep open; 0 scans in window-only mode. HOW is "whole" (the
// default), "cancel" (after the first batch), "deadline=MS" (with a credit that is never raised) or "gzip" (the
// requests). Prints one JSON object: rows, what was received past the credit, the end, and the status with its details.
"use strict";

const path = require("path");
const grpc = require("@grpc/grpc-js");
const protoLoader = require("@grpc/proto-loader");

const [protoRoot, endpoint, table, creditText, how = "whole"] = process.argv.slice(2);
const credit = Number(creditText);

const definition = protoLoader.loadSync(path.join("weir", "v1", "scanner.proto"), {
  includeDirs: [protoRoot],
  keepCase: true,
  longs: Number,
  enums: String,
  oneofs: true,
});
// What counts against the credit is the length of the message on the wire.
const method = definition["weir.v1.Scanner"].Scan;
const parse = method.responseDeserialize;
method.responseDeserialize = (octets) => Object.assign(parse(octets), { size: octets.length });

const { Scanner } = grpc.loadPackageDefinition(definition).weir.v1;
const client = new Scanner(endpoint, grpc.credentials.createInsecure(), {
  "grpc.max_receive_message_length": -1,
  "grpc.default_compression_algorithm": how === "gzip" ? grpc.compressionAlgorithms.gzip : 0,
});
const [, deadlineMs] = how.split("deadline=");
const call = client.Scan(deadlineMs ? { deadline: Date.now() + Number(deadlineMs) } : {});
const found = { rows: 0, bytes: 0, overrun: 0, end: null, ordinals: true };
let limit = credit;

call.on("data", (response) => {
  if (response.response === "batch") {
    found.ordinals &&= (response.batch.row_ordinal || 0) === found.rows;
    found.rows += response.batch.row_count;
    found.bytes += response.size;
    if (how === "cancel") {
      call.cancel();
    } else if (credit && how === "whole") {
      found.overrun = Math.max(found.overrun, found.bytes - limit);
      limit = found.bytes + credit;
      call.write({ demand: { bytes_limit: limit } });
    }
  } else if (response.response === "end") {
    found.end = response.end;
    call.end();
  }
});
call.on("error", () => {}); // the status tells
call.on("status", (status) => {
  found.status = grpc.status[status.code];
  found.message = status.details;
  found.details = (status.metadata.get("grpc-status-details-bin")[0] || Buffer.alloc(0)).toString("base64");
  console.log(JSON.stringify(found));
  client.close();
});

call.write({ open: { source: "SCAN_SOURCE_LIVE_KV", query: { table } } });
if (credit) {
  call.write({ demand: { bytes_limit: credit } });
} else {
  call.end();
}
