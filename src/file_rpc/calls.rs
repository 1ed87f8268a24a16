//! The calls of scripts: which of them ran, which are running, which answers are not yet in place.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::frame::{Frame, MAX_PAYLOAD, kind};
use super::uploads::Uploads;
use crate::limits::MAX_CALL_FRAME;
use crate::link::Reply;
use crate::link::call::too_large;

/// Attempts to store an answer after which an error takes its place.
const ATTEMPTS: u32 = 3;
/// Offset of an answer frame that only asks whether the target's own answer is in place.
const GIVEN: u64 = 1;
pub(super) const LOST: &[u8] = br#"{"error": "the call ran once, and its answer was lost on the target; look at what it did before it is made again"}"#;
const UNSTORED: &[u8] =
    br#"{"error": "the call ran, but its answer could not be stored on the target; free space there, and look at what it did before it is made again"}"#;

/// Which call: the caller's slot, and its how-manieth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct CallId {
    client: u64,
    sequence: u64,
}

impl CallId {
    /// Reads `CLIENT-SEQ`; nothing else is a call's name.
    pub(super) fn parse(name: &[u8]) -> Option<Self> {
        let (client, rest) = name.split_at_checked(16)?;
        let sequence = rest.strip_prefix(b"-")?;
        let is_plain = client.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
            && sequence.first().is_some_and(|first| matches!(first, b'1'..=b'9'))
            && sequence.iter().all(u8::is_ascii_digit);
        if !is_plain {
            return None;
        }
        Some(Self {
            client: u64::from_str_radix(std::str::from_utf8(client).ok()?, 16).ok()?,
            sequence: std::str::from_utf8(sequence).ok()?.parse().ok()?,
        })
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}-{}", self.client, self.sequence)
    }
}

enum Call {
    Receiving(BytesMut),
    Running {
        size: u64,
        reply: Arc<Reply>,
    },
    Answered {
        size: u64,
        body: Bytes,
        is_blob: bool,
        /// Whether the target gave the answer itself; it is asked whether that is in place.
        is_given: bool,
        sent: bool,
        refusals: u32,
    },
}

impl Call {
    fn running(id: CallId, size: u64) -> Self {
        let reply = Arc::new(Reply::new(id.to_string()));
        Self::Running { size, reply }
    }
}

/// What is to be done about calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallEffect {
    /// Run it.
    Dispatch(CallId, Bytes),
    /// Its caller is gone.
    Cancel(CallId),
}

/// All calls that are not settled, and the highest of each client for ever.
pub(super) struct Calls {
    highest: HashMap<u64, u64>,
    open: BTreeMap<CallId, Call>,
    unsent: VecDeque<CallId>,
    pub(super) effects: VecDeque<CallEffect>,
}

impl Calls {
    pub(super) fn new() -> Self {
        Self {
            highest: HashMap::new(),
            open: BTreeMap::new(),
            unsent: VecDeque::new(),
            effects: VecDeque::new(),
        }
    }

    /// Takes bytes of a request.
    pub(super) fn receive(&mut self, id: CallId, frame: Frame) {
        let ran_before = self
            .highest
            .get(&id.client)
            .is_some_and(|highest| id.sequence <= *highest);
        match self.open.get_mut(&id) {
            // Its answer is on the way, or will be.
            Some(Call::Running { .. } | Call::Answered { sent: false, .. }) => {}
            // It was written again because the answer came to nothing: its request had gone with the directory.
            Some(Call::Answered { .. }) => self.queue(id),
            Some(Call::Receiving(buffer)) => {
                if frame.offset != buffer.len() as u64 {
                    return;
                }
                if (buffer.len() + frame.payload.len()) as u64 > MAX_CALL_FRAME {
                    let size = (buffer.len() + frame.payload.len()) as u64;
                    self.begin(id, size);
                    return self.answer(id, too_large(size).to_string().into(), None);
                }
                buffer.extend_from_slice(&frame.payload);
                if frame.last {
                    let body = std::mem::take(buffer).freeze();
                    self.dispatch(id, body);
                }
            }
            None if ran_before => {
                self.open.insert(id, Call::running(id, 0));
                self.answer(id, Bytes::from_static(LOST), None);
            }
            None if frame.offset != 0 => {}
            None if frame.last => self.dispatch(id, frame.payload),
            None => {
                let mut buffer = BytesMut::with_capacity(4 * MAX_PAYLOAD);
                buffer.extend_from_slice(&frame.payload);
                self.open.insert(id, Call::Receiving(buffer));
            }
        }
    }

    fn dispatch(&mut self, id: CallId, body: Bytes) {
        self.begin(id, body.len() as u64);
        self.effects.push_back(CallEffect::Dispatch(id, body));
    }

    /// From here on it counts as run.
    fn begin(&mut self, id: CallId, size: u64) {
        // A client has one call at a time: it has given up what it asked before.
        let first = CallId { sequence: 0, ..id };
        let earlier: Vec<CallId> = self
            .open
            .range(first..id)
            .filter(|(_, call)| match call {
                Call::Answered { .. } => false,
                // The target may have answered: word of it is on its way.
                Call::Running { reply, .. } => !reply.is_promised(),
                Call::Receiving(_) => true,
            })
            .map(|(earlier, _)| *earlier)
            .collect();
        for earlier in earlier {
            if let Some(Call::Running { .. }) = self.open.remove(&earlier) {
                self.effects.push_back(CallEffect::Cancel(earlier));
            }
        }
        self.highest.insert(id.client, id.sequence);
        self.open.insert(id, Call::running(id, size));
    }

    /// Takes the answer of a running call; of another, nobody wants it any more.
    pub(super) fn answer(&mut self, id: CallId, body: Bytes, uploads: Option<&mut Uploads>) {
        if let Some(Call::Running { size, reply }) = self.open.get(&id) {
            let is_blob = body.len() > MAX_PAYLOAD;
            let is_given = reply.is_given();
            let call = Call::Answered {
                size: *size,
                body: body.clone(),
                is_blob,
                is_given,
                sent: false,
                refusals: 0,
            };
            if let (true, false, Some(uploads)) = (is_blob, is_given, uploads) {
                uploads.add(id.to_string(), body);
            }
            self.open.insert(id, call);
            self.queue(id);
        }
    }

    /// The caller of a running call, for whoever may have the target answer it.
    pub(super) fn reply(&self, id: CallId) -> Option<Arc<Reply>> {
        match self.open.get(&id) {
            Some(Call::Running { reply, .. }) => Some(reply.clone()),
            _ => None,
        }
    }

    fn queue(&mut self, id: CallId) {
        if !self.unsent.contains(&id) {
            self.unsent.push_back(id);
        }
    }

    /// The next answer that can be sent now.
    pub(super) fn next_frame(&mut self, uploads: &Uploads) -> Option<Frame> {
        let at = self.unsent.iter().position(|id| match self.open.get(id) {
            Some(Call::Answered {
                is_blob: true,
                is_given: false,
                ..
            }) => uploads.is_complete(&id.to_string()),
            _ => true,
        })?;
        let id = self.unsent.remove(at)?;
        let Some(Call::Answered {
            body,
            is_blob,
            is_given,
            sent,
            ..
        }) = self.open.get_mut(&id)
        else {
            return self.next_frame(uploads);
        };
        *sent = true;
        let name = id.to_string();
        Some(if *is_given {
            Frame {
                offset: GIVEN,
                ..Frame::whole(kind::ANSWER, name, Bytes::new())
            }
        } else if *is_blob {
            Frame::whole(kind::ANSWER_BLOB, name.clone(), name)
        } else {
            Frame::whole(kind::ANSWER, name, body.clone())
        })
    }

    /// The answer is in place, or nobody waits for it.
    pub(super) fn settled(&mut self, id: CallId, uploads: &mut Uploads) {
        match self.open.remove(&id) {
            Some(Call::Running { .. }) => self.effects.push_back(CallEffect::Cancel(id)),
            Some(Call::Answered { is_blob: true, .. }) => uploads.remove(&id.to_string()),
            _ => {}
        }
        self.unsent.retain(|other| *other != id);
    }

    /// The answer could not be stored, or its blob is not there.
    pub(super) fn refused(&mut self, id: CallId, uploads: &mut Uploads) {
        let Some(Call::Answered {
            body,
            is_blob,
            is_given,
            sent,
            refusals,
            ..
        }) = self.open.get_mut(&id)
        else {
            return;
        };
        *sent = false;
        let name = id.to_string();
        if std::mem::take(is_given) {
            // It went with the directory, and the caller has asked again.
            if *is_blob {
                uploads.add(name, body.clone());
            }
            return self.queue(id);
        }
        *refusals += 1;
        if *refusals == ATTEMPTS {
            uploads.remove(&name);
            *is_blob = false;
            *body = Bytes::from_static(UNSTORED);
        } else if *refusals > ATTEMPTS {
            // Nothing is smaller; the next link tries again.
            return;
        } else if *is_blob {
            uploads.restart(&name);
        }
        self.queue(id);
    }

    /// What was on its way is lost: every answer has to be sent again.
    pub(super) fn link_down(&mut self) {
        self.unsent.clear();
        for (id, call) in &mut self.open {
            if let Call::Answered { sent, .. } = call {
                *sent = false;
                self.unsent.push_back(*id);
            }
        }
    }

    /// Bytes that are here of each request.
    pub(super) fn have(&self) -> BTreeMap<String, u64> {
        let bytes = |call: &Call| match call {
            Call::Receiving(buffer) => buffer.len() as u64,
            Call::Running { size, .. } | Call::Answered { size, .. } => *size,
        };
        self.open
            .iter()
            .map(|(id, call)| (id.to_string(), bytes(call)))
            .collect()
    }

    /// Whether the relay has put all answers in place that it was sent.
    pub(super) fn is_told(&self) -> bool {
        !self
            .open
            .values()
            .any(|call| matches!(call, Call::Answered { sent: true, .. }))
    }

    /// Whether an answer has to be said.
    pub(super) fn is_pending(&self) -> bool {
        !self.unsent.is_empty()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_are_calls() {
        let id = CallId::parse(b"00000000000000ff-12");
        assert_eq!(id.map(|id| id.to_string()).as_deref(), Some("00000000000000ff-12"));
        for name in [
            "",
            "ff-1",
            "00000000000000FF-1",
            "00000000000000ff-",
            "00000000000000ff-0",
            "00000000000000ff-01",
            "00000000000000ff-1 ",
            "00000000000000ff-+1",
            "00000000000000ff_1",
            "0000000000000-ff-1",
            "00000000000000ff-99999999999999999999999",
            "é000000000000000-1",
            "00000000000000f\u{e9}-1",
        ] {
            assert_eq!(CallId::parse(name.as_bytes()), None, "{name}");
        }
    }

    #[test]
    fn a_request_that_is_written_again_is_answered_again_and_not_run() {
        let (mut calls, uploads) = (Calls::new(), Uploads::new(1 << 20));
        let name = "00000000000000ff-1";
        let id = CallId::parse(name.as_bytes()).unwrap();
        for round in 0..3 {
            calls.receive(id, Frame::whole(kind::CALL, name.to_owned(), Bytes::from_static(b"[]")));
            assert_eq!(calls.effects.drain(..).count(), usize::from(round == 0));
            calls.answer(id, Bytes::from_static(b"7"), None);
            let answer = calls.next_frame(&uploads).unwrap();
            assert_eq!((answer.kind, &answer.payload[..]), (kind::ANSWER, &b"7"[..]));
            assert!(calls.next_frame(&uploads).is_none());
        }
    }

    /// A call of the second client, running.
    fn begun(calls: &mut Calls, name: &str) -> CallId {
        calls.receive(
            CallId::parse(name.as_bytes()).unwrap(),
            Frame::whole(kind::CALL, name.to_owned(), Bytes::from_static(b"[]")),
        );
        calls.effects.clear();
        CallId::parse(name.as_bytes()).unwrap()
    }

    #[test]
    fn an_answer_that_the_target_gave_is_sent_only_where_it_is_missed() {
        for size in [1, MAX_PAYLOAD + 1] {
            let (mut calls, mut uploads) = (Calls::new(), Uploads::new(1 << 20));
            let id = begun(&mut calls, "00000000000000ff-1");
            let reply = calls.reply(id).unwrap();
            reply.promise();
            reply.settle(true);
            calls.answer(id, vec![b'7'; size].into(), Some(&mut uploads));
            let asked = calls.next_frame(&uploads).unwrap();
            assert_eq!(
                (asked.kind, asked.offset, asked.payload.len()),
                (kind::ANSWER, GIVEN, 0)
            );
            assert!(calls.next_frame(&uploads).is_none() && !uploads.is_pending());
            calls.refused(id, &mut uploads);
            if size > MAX_PAYLOAD {
                assert!(calls.next_frame(&uploads).is_none() && uploads.is_pending());
            } else {
                let whole = calls.next_frame(&uploads).unwrap();
                assert_eq!((whole.kind, whole.offset, whole.payload.len()), (kind::ANSWER, 0, size));
            }
            calls.settled(id, &mut uploads);
            assert!(calls.is_told() && !uploads.is_pending());
        }
    }

    #[test]
    fn a_caller_that_goes_on_cancels_only_what_the_target_does_not_answer() {
        for promised in [false, true] {
            let mut calls = Calls::new();
            let id = begun(&mut calls, "00000000000000ff-1");
            if promised {
                calls.reply(id).unwrap().promise();
            }
            let next = "00000000000000ff-2";
            calls.receive(
                CallId::parse(next.as_bytes()).unwrap(),
                Frame::whole(kind::CALL, next.to_owned(), Bytes::from_static(b"[]")),
            );
            assert_eq!(calls.effects.contains(&CallEffect::Cancel(id)), !promised);
            assert_eq!(calls.reply(id).is_some(), promised);
        }
    }
}
