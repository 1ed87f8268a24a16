//! Output of a running script on the terminal, and the line that shows that it is still running.

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use talaria_broker::output::Stream;
use talaria_broker::session::{Cancel, OutputSink};

/// Time before the status line shows: quick scripts need none.
const QUIET: Duration = Duration::from_millis(800);

/// Bytes of output that wait while a question stands there.
const MOST_HELD: usize = 1 << 20;

/// Writes a script's output to our own streams.
pub(crate) struct Terminal {
    state: Mutex<State>,
    cancel: Cancel,
    /// The status line is drawn on stderr.
    status: bool,
}

struct State {
    /// What is done before the script can begin, and since when.
    waits: Option<(String, Instant)>,
    began: Option<Instant>,
    calls: u64,
    drawn: bool,
    at_line_start: bool,
    /// Output that came while a question stood there; `None`: none does.
    held: Option<Vec<(Stream, String)>>,
    /// Why output could not be written, the first time.
    failure: Option<io::Error>,
}

impl Terminal {
    /// `status`: whether a status line is wanted, should stderr be a terminal.
    pub(crate) fn new(cancel: Cancel, status: bool) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                waits: None,
                began: None,
                calls: 0,
                drawn: false,
                at_line_start: true,
                held: None,
                failure: None,
            }),
            cancel,
            status: status && std::io::stderr().is_terminal(),
        })
    }

    /// Keeps the status line up to date until it is dropped.
    pub(crate) fn animate(self: &Arc<Self>) -> tokio::task::JoinHandle<()> {
        let terminal = self.clone();
        tokio::spawn(async move {
            if !terminal.status {
                return;
            }
            loop {
                terminal.draw();
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        })
    }

    /// Whether all output was written, once there is no more of it.
    pub(crate) fn written(&self) -> io::Result<()> {
        self.lock().failure.take().map_or(Ok(()), Err)
    }

    /// Takes the status line away.
    pub(crate) fn clear(&self) {
        erase(&mut self.lock());
    }

    /// Leaves the terminal to a question: output waits.
    pub(crate) fn pause(&self) {
        let mut state = self.lock();
        erase(&mut state);
        state.held.get_or_insert_default();
    }

    /// The question has gone: what waited is written.
    pub(crate) fn resume(&self) {
        let mut state = self.lock();
        state.at_line_start = true;
        for (stream, text) in state.held.take().unwrap_or_default() {
            self.put(&mut state, stream, &text);
        }
    }

    fn put(&self, state: &mut State, stream: Stream, text: &str) {
        erase(state);
        let result = match stream {
            Stream::Stdout => {
                let mut out = std::io::stdout().lock();
                out.write_all(text.as_bytes()).and_then(|()| out.flush())
            }
            Stream::Stderr => std::io::stderr().write_all(text.as_bytes()),
        };
        state.at_line_start = text.ends_with('\n');
        if let Err(error) = result
            && state.failure.is_none()
        {
            state.failure = Some(error);
            self.cancel.cancel_at_once("the output cannot be written");
        }
    }

    fn draw(&self) {
        let mut state = self.lock();
        if state.held.is_some() {
            return;
        }
        let (what, began) = match (&state.began, &state.waits) {
            (Some(began), _) => (None, *began),
            (None, Some((what, since))) => (Some(what), *since),
            (None, None) => return,
        };
        let elapsed = began.elapsed();
        let what = what.map(|what| format!("{what} · ")).unwrap_or_default();
        let stopping = self.cancel.is_cancelled();
        if !stopping && (elapsed < QUIET || !state.at_line_start) {
            return;
        }
        let calls = match state.calls {
            0 => String::new(),
            1 => " · 1 tool call".to_owned(),
            n => format!(" · {n} tool calls"),
        };
        let advice = if stopping {
            "stopping; a second Ctrl-C kills at once"
        } else {
            "Ctrl-C interrupts"
        };
        // Output without an end of line is not drawn over.
        let start = if state.at_line_start { "\r\x1b[K" } else { "\r\n" };
        let line = format!("{start}{what}{:.0} s{calls} · {advice}", elapsed.as_secs_f64());
        state.at_line_start = true;
        state.drawn = std::io::stderr().write_all(line.as_bytes()).is_ok();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn erase(state: &mut State) {
    if state.drawn {
        // A terminal that cannot be written to shows no line either.
        let _ = std::io::stderr().write_all(b"\r\x1b[K");
        state.drawn = false;
    }
}

impl OutputSink for Terminal {
    fn write(&self, stream: Stream, text: &str) {
        let mut state = self.lock();
        match &mut state.held {
            Some(held) if held.iter().map(|(_, text)| text.len()).sum::<usize>() < MOST_HELD => {
                held.push((stream, text.to_owned()));
            }
            Some(_) => {
                // More than anybody waits for: the question is harder to read, and nothing is lost.
                for (stream, text) in state.held.replace(Vec::new()).unwrap_or_default() {
                    self.put(&mut state, stream, &text);
                }
                self.put(&mut state, stream, text);
            }
            None => self.put(&mut state, stream, text),
        }
    }

    fn tool_calls(&self, made: u64) {
        self.lock().calls = made;
    }

    fn progress(&self, line: &str) {
        let mut state = self.lock();
        let since = state.waits.take().map_or_else(Instant::now, |(_, since)| since);
        state.waits = Some((line.to_owned(), since));
    }

    fn started(&self) {
        let mut state = self.lock();
        erase(&mut state);
        state.waits = None;
        state.began = Some(Instant::now());
    }
}
