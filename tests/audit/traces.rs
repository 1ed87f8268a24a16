//! Traces, as a collector gets them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

use crate::rig::{LIMIT, Rig, texts};

/// One request: its head, and what it carried.
struct Received {
    head: String,
    service: Option<String>,
    spans: Vec<Span>,
}

/// Takes requests until the process ends.
fn collector() -> (String, Receiver<Received>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (send, received) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).unwrap() > 0 {}
            let lower = head.to_ascii_lowercase();
            let length = lower.split("content-length: ").nth(1).unwrap_or("0");
            let mut body = vec![0; length.lines().next().unwrap().parse().unwrap()];
            stream.read_exact(&mut body).unwrap();
            let request = ExportTraceServiceRequest::decode(&*body).unwrap();
            let resource = &request.resource_spans[0];
            let attributes = &resource.resource.as_ref().unwrap().attributes;
            let service = text(attributes, "service.name");
            let scopes = resource.scope_spans.iter();
            let spans = scopes.flat_map(|scope| scope.spans.clone()).collect();
            if send.send(Received { head, service, spans }).is_err() {
                return;
            }
            let answer = "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            stream.get_mut().write_all(answer.as_bytes()).unwrap();
        }
    });
    (address, received)
}

fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|one| one.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        any_value::Value::StringValue(text) => Some(text.clone()),
        any_value::Value::IntValue(number) => Some(number.to_string()),
        other => Some(format!("{other:?}")),
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_gets_cells_and_calls_in_the_callers_trace() {
    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const PARENT: &str = "b7ad6b7169203331";
    let rig = Rig::new();
    let (address, received) = collector();
    let code = "import os\nfrom hermes_tools import read_file, terminal\n\
                read_file('s3cr3t-name')\n\
                print([name for name in os.environ if 'OTEL' in name or 'TRACE' in name])\n\
                print('OTLP_HEADERS' in terminal('env')['output'])\n\
                1/0";
    let done = rig
        .talaria(&["run", "-vv", "-c", code])
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &address)
        .env("OTEL_EXPORTER_OTLP_HEADERS", "x-collector=c0llector-s3cret")
        .env("TRACEPARENT", format!("00-{TRACE}-{PARENT}-01"))
        .env("TRACESTATE", "vendor=1")
        .output()
        .unwrap();
    let (stdout, stderr) = texts(&done);
    assert_eq!(stdout, "[]\nFalse\n", "{stderr}");
    assert!(!stderr.contains("c0llector"), "{stderr}");
    let received: Vec<Received> = received.try_iter().collect();
    assert!(received[0].head.starts_with("POST /v1/traces"), "{}", received[0].head);
    assert!(received[0].head.contains("x-collector: c0llector-s3cret"));
    assert_eq!(received[0].service.as_deref(), Some("talaria"));
    let spans: Vec<&Span> = received.iter().flat_map(|one| &one.spans).collect();
    let by_name = |name: &str| {
        let found = spans.iter().find(|span| span.name == name);
        *found.unwrap_or_else(|| panic!("{name}: {:?}", spans.iter().map(|span| &span.name).collect::<Vec<_>>()))
    };
    let cell = by_name("execute_code");
    assert_eq!(
        (hexadecimal(&cell.trace_id), hexadecimal(&cell.parent_span_id)),
        (TRACE.to_owned(), PARENT.to_owned())
    );
    assert_eq!(cell.trace_state, "vendor=1");
    assert_eq!(text(&cell.attributes, "talaria.status").as_deref(), Some("error"));
    assert_eq!(text(&cell.attributes, "process.exit.code").as_deref(), Some("1"));
    assert_eq!(cell.status.as_ref().unwrap().code, 2);
    let call = by_name("execute_tool read_file");
    assert_eq!((&call.trace_id, &call.parent_span_id), (&cell.trace_id, &cell.span_id));
    for (key, value) in [
        ("gen_ai.operation.name", "execute_tool"),
        ("gen_ai.tool.name", "read_file"),
        ("talaria.decision", "allowed"),
        ("error.type", "tool_error"),
    ] {
        assert_eq!(text(&call.attributes, key).as_deref(), Some(value), "{key}");
    }
    let session = text(&cell.attributes, "talaria.session").unwrap();
    let id = text(&call.attributes, "gen_ai.tool.call.id").unwrap();
    assert_eq!(id, format!("{session}-1-1"));
    for phase in ["reach target", "start session", "start kernel"] {
        assert_eq!(by_name(phase).parent_span_id, cell.span_id, "{phase}");
    }
    assert_eq!(
        by_name("execute_tool terminal")
            .status
            .as_ref()
            .map_or(0, |status| status.code),
        0
    );
    assert!(!format!("{spans:?}").contains("s3cr3t-name"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_away_or_silent_harms_nothing() {
    let rig = Rig::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = (format!("http://{}", silent.local_addr().unwrap()), silent);
    let away = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    for address in [&silent.0, &away, "collector:4317"] {
        let began = Instant::now();
        let done = rig
            .talaria(&["run", "-c", "print(1)"])
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", address)
            .output()
            .unwrap();
        assert!(began.elapsed() < LIMIT);
        let (stdout, stderr) = texts(&done);
        assert_eq!(stdout, "1\n");
        assert_eq!(done.status.code(), Some(0));
        let is_no_address = address == "collector:4317";
        assert_eq!(stderr.contains("no traces are exported"), is_no_address, "{stderr}");
    }
    let (address, received) = collector();
    let off = rig
        .talaria(&["run", "-c", "print(1)"])
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &address)
        .env("OTEL_TRACES_EXPORTER", "none")
        .output();
    assert_eq!(texts(&off.unwrap()).0, "1\n");
    assert!(received.try_recv().is_err());
}
