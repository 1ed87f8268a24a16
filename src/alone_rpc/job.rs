//! Commands and file operations where nothing stands beside them.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::cell::{AFTER_END, Capped};
use super::command::{Running, Site, status};
use super::splitter::Piece;
use crate::link::wire::{unpack, variables};
use crate::link::{JobDone, LinkEvent, RunJob, RunVerb, VerbDone};

/// Time in which the streams of a shell must end that was killed, or has ended.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time in which a shell must have begun.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Runs a command to its end. A second one tells what it left, and ends what it started.
pub(super) async fn run(site: Arc<Site>, job: RunJob, events: mpsc::Sender<LinkEvent>, stop: CancellationToken) {
    let mut done = JobDone {
        job: job.job,
        why: "failed".to_owned(),
        status: None,
        detail: String::new(),
        skipped: (0, Bytes::new()),
        state: Bytes::new(),
    };
    let timeout = job.timeout.to_string();
    let argv = job.argv.join(&0);
    let environment = variables(&job.environment);
    let fields: [&[u8]; 6] = [
        timeout.as_bytes(),
        &job.folder,
        &argv,
        &environment,
        &job.script_path,
        &job.script,
    ];
    let begun = tokio::select! {
        () = stop.cancelled() => Err("it was stopped before it began".to_owned()),
        begun = site.begin(b'J', &fields) => begun,
    };
    match begun {
        Ok(running) => {
            let process = carry(running, &job, &mut done, &events, &stop).await;
            if let Some(process) = process {
                let fields: [&[u8]; 3] = [&process, &job.script_path, &job.state_path];
                match site.ask(b'S', &fields).await {
                    Ok(state) => done.state = state,
                    Err(reason) => tracing::debug!(%reason, "the state of a command is not known"),
                }
            }
        }
        Err(reason) => done.detail = reason,
    }
    // Nobody may be there to hear it any more.
    let _ = events.send(LinkEvent::JobDone(done)).await;
}

/// Carries the output of a command; its process, where it began.
async fn carry(
    mut running: Running,
    job: &RunJob,
    done: &mut JobDone,
    events: &mpsc::Sender<LinkEvent>,
    stop: &CancellationToken,
) -> Option<Bytes> {
    let mut output = Capped::new(job.output_cap);
    let mut process: Option<Bytes> = None;
    let mut message = BytesMut::new();
    let limit = Duration::try_from_secs_f64(job.timeout).unwrap_or(Duration::MAX);
    let deadline = tokio::time::sleep(START_LIMIT);
    tokio::pin!(deadline);
    let mut why = None;
    let mut end = None;
    let mut last = Instant::now();
    loop {
        let mut was_begun = process.is_some();
        tokio::select! {
            read = running.stdout.read_buf(running.splitter.buffer()) => {
                let is_open = matches!(read, Ok(1..));
                if end.is_some() {
                    deadline.as_mut().reset(last.min(Instant::now() + AFTER_END));
                }
                while let Some(piece) = running.splitter.next() {
                    match piece {
                        Piece::Output(data) => send(job.job, output.take(data), events).await,
                        Piece::Message { kind, is_last, body } => {
                            message.extend_from_slice(&body);
                            if is_last && kind == b'B' {
                                process = Some(message.split().freeze());
                            } else if is_last {
                                done.detail = String::from_utf8_lossy(&message.split()).into_owned();
                            }
                        }
                    }
                }
                if !is_open {
                    break;
                }
            }
            found = running.end.wait(), if end.is_none() => {
                end = Some(found);
                last = Instant::now() + PATIENCE;
                deadline.as_mut().reset(Instant::now() + AFTER_END);
            }
            () = stop.cancelled(), if why.is_none() => why = Some("stopped"),
            () = &mut deadline => {
                if why.is_some() || end.is_some() {
                    break;
                }
                why = Some(if was_begun { "timeout" } else { "failed" });
            }
        }
        if why.is_some() && end.is_none() && running.stdin.take().is_some() {
            deadline.as_mut().reset(Instant::now() + PATIENCE);
        }
        was_begun = !was_begun && process.is_some();
        if was_begun
            && end.is_none()
            && let Some(until) = Instant::now().checked_add(limit)
        {
            deadline.as_mut().reset(until);
        }
    }
    send(job.job, output.take(running.splitter.rest()), events).await;
    let status = match end {
        Some(end) => status(end),
        None => running.status().await,
    };
    drop(running);
    if process.is_some() {
        done.why = why.unwrap_or("exit").to_owned();
        done.status = status;
    } else if done.detail.is_empty() {
        "the shell did not begin".clone_into(&mut done.detail);
    }
    done.skipped = output.skipped();
    process
}

async fn send(job: u64, data: Bytes, events: &mpsc::Sender<LinkEvent>) {
    if !data.is_empty() {
        let _ = events.send(LinkEvent::JobOutput { job, data }).await;
    }
}

/// Does a file operation.
pub(super) async fn perform(site: Arc<Site>, verb: RunVerb, events: mpsc::Sender<LinkEvent>, stop: CancellationToken) {
    let mut fields: Vec<&[u8]> = vec![verb.verb.as_bytes(), &verb.folder, &verb.home];
    fields.extend(verb.arguments.iter().map(Bytes::as_ref));
    let answer = tokio::select! {
        () = stop.cancelled() => Err("the file operation was stopped".to_owned()),
        answer = site.ask(b'V', &fields) => answer,
    };
    let found = answer.and_then(|message| unpack(message).map_err(|error| error.to_string()));
    let (ok, fields) = match found {
        Ok(mut fields) if !fields.is_empty() => {
            let verdict = fields.remove(0);
            (&verdict[..] == b"ok", fields)
        }
        Ok(_) => (
            false,
            vec![Bytes::from_static(b"the file operation ended without a result")],
        ),
        Err(reason) => (false, vec![Bytes::from(reason)]),
    };
    let number = verb.number;
    let _ = events
        .send(LinkEvent::VerbDone(VerbDone {
            number,
            ok,
            answered: false,
            fields,
        }))
        .await;
}
