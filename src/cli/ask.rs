//! Asking on the terminal whether a tool call may happen.

use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{QueueSelector, tcflush, tcgetwinsize};
use talaria_broker::approval::{ApprovalRequest, Approver, Decision, Question, plain};

use super::stream::Terminal;

/// How often it is looked whether a question was withdrawn, in milliseconds.
const LOOK: i64 = 100;
/// Columns of a terminal that does not say.
const COLUMNS: usize = 80;
/// What can be answered.
const PROMPT: &str =
    "Allow it? y: once, a: always in this session where the same rules would ask, v: show all, n or a reason: no > ";
/// Bytes of an answer.
const MOST_ANSWER: usize = 4096;

/// Asks whoever sits at the terminal.
pub(crate) struct Asker {
    /// Where output and status line go, which wait meanwhile.
    shown: Option<Arc<Terminal>>,
}

impl Asker {
    pub(crate) fn new(shown: Option<Arc<Terminal>>) -> Arc<Self> {
        Arc::new(Self { shown })
    }
}

/// Takes a question back when it is dropped.
struct Asking {
    withdrawn: Arc<AtomicBool>,
    shown: Option<Arc<Terminal>>,
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.withdrawn.store(true, Ordering::Release);
        if let Some(shown) = &self.shown {
            shown.resume();
        }
    }
}

#[async_trait]
impl Approver for Asker {
    fn who(&self) -> String {
        "the user at the terminal".to_owned()
    }

    async fn ask(&self, request: ApprovalRequest) -> Decision {
        let nobody = |why: &str| Decision::CannotAsk {
            reason: format!(
                "{why}; run it on a terminal, allow it in the configuration (approval.tools.{}), or leave the tool out with --allow",
                request.tool
            ),
        };
        let Some(mut line) = Line::open() else {
            return nobody("there is no terminal to ask on");
        };
        if let Some(shown) = &self.shown {
            shown.pause();
        }
        let asking = Asking {
            withdrawn: Arc::default(),
            shown: self.shown.clone(),
        };
        let withdrawn = asking.withdrawn.clone();
        let question = Question::of(&request);
        let conversation = tokio::task::spawn_blocking(move || converse(&mut line, &question, &withdrawn)).await;
        match conversation {
            Ok(Ok(Some(decision))) => decision,
            Ok(Ok(None)) => nobody("the terminal was closed"),
            Ok(Err(error)) => nobody(&format!("the terminal cannot be read ({error})")),
            Err(error) => nobody(&format!("asking failed ({error})")),
        }
    }
}

/// The line to a person.
struct Line {
    reads: File,
    writes: File,
}

impl Line {
    /// The terminal of this process; standard input and stderr, where they are one.
    fn open() -> Option<Self> {
        let both = |file: File| Some((file.try_clone().ok()?, file));
        let own = File::options()
            .read(true)
            .write(true)
            .open("/dev/tty")
            .ok()
            .and_then(both);
        let (reads, writes) = own.or_else(|| {
            let (stdin, stderr) = (std::io::stdin(), std::io::stderr());
            if !stdin.is_terminal() || !stderr.is_terminal() {
                return None;
            }
            let copy = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().ok().map(File::from);
            Some((copy(stdin.as_fd())?, copy(stderr.as_fd())?))
        })?;
        Some(Self { reads, writes })
    }

    fn columns(&self) -> usize {
        tcgetwinsize(&self.writes)
            .ok()
            .map(|size| usize::from(size.ws_col))
            .filter(|columns| *columns > 20)
            .unwrap_or(COLUMNS)
    }

    fn say(&mut self, text: &str) -> std::io::Result<()> {
        self.writes.write_all(text.as_bytes())?;
        self.writes.flush()
    }

    /// The next line; `None` when the question was withdrawn, and at the end of all input.
    fn answer(&mut self, withdrawn: &AtomicBool) -> std::io::Result<Option<String>> {
        let mut answer = Vec::new();
        let look = Timespec {
            tv_sec: 0,
            tv_nsec: LOOK * 1_000_000,
        };
        loop {
            if withdrawn.load(Ordering::Acquire) {
                return Ok(None);
            }
            let mut wanted = [PollFd::new(&self.reads, PollFlags::IN)];
            match poll(&mut wanted, Some(&look)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            let mut piece = [0; 1024];
            match self.reads.read(&mut piece)? {
                0 => return Ok(None),
                count => answer.extend_from_slice(&piece[..count]),
            }
            if answer.last() == Some(&b'\n') || answer.len() > MOST_ANSWER {
                return Ok(Some(String::from_utf8_lossy(&answer).trim().to_owned()));
            }
        }
    }
}

/// Puts the question until it has an answer. `None`: there is nobody.
fn converse(line: &mut Line, question: &Question, withdrawn: &AtomicBool) -> std::io::Result<Option<Decision>> {
    let columns = line.columns();
    line.say(&question.shown(columns, false))?;
    loop {
        // What was typed before the question stood there is no answer to it.
        let _ = tcflush(&line.reads, QueueSelector::IFlush);
        line.say(PROMPT)?;
        let Some(answer) = line.answer(withdrawn)? else {
            line.say(if withdrawn.load(Ordering::Acquire) {
                "withdrawn\n"
            } else {
                "\n"
            })?;
            return Ok(None);
        };
        return Ok(Some(match answer.to_lowercase().as_str() {
            "v" => {
                line.say(&question.shown(columns, true))?;
                continue;
            }
            "y" | "yes" => Decision::AllowOnce,
            "a" | "always" => Decision::AllowForSession,
            "" | "n" | "no" => Decision::Deny { reason: None },
            _ => Decision::Deny {
                reason: Some(plain(&answer)),
            },
        }));
    }
}
