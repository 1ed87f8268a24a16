//! The supervisor's events, as they arrive: a stream of bytes with places in it.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use crate::link::{LinkError, LinkEvent};

/// Bytes after which the log is acknowledged though more of it is there.
const ACKNOWLEDGE_EVERY: u64 = 65_536;
/// Links in a row that began behind the place where we stand, after which what lies between is lost for good.
const GAPS: u32 = 3;

/// Where we stand in the log, and the events that nobody has taken yet.
pub(super) struct Log {
    buffer: BytesMut,
    received: u64,
    /// End of the last event that was taken.
    taken: u64,
    acknowledged: u64,
    queue: VecDeque<(u64, LinkEvent)>,
    gaps: u32,
}

impl Log {
    pub(super) fn new() -> Self {
        Self {
            buffer: BytesMut::new(),
            received: 0,
            taken: 0,
            acknowledged: 0,
            queue: VecDeque::new(),
            gaps: 0,
        }
    }

    /// The place from which more is wanted.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// Takes what begins where we stand; `witness` sees every event. Whether it did begin there.
    pub(super) fn receive(
        &mut self,
        offset: u64,
        bytes: &Bytes,
        mut witness: impl FnMut(&LinkEvent),
    ) -> Result<bool, LinkError> {
        let end = offset + bytes.len() as u64;
        if offset > self.received {
            self.gaps += 1;
            return if self.gaps < GAPS {
                Ok(false)
            } else {
                Err(LinkError::Malformed("a part of its events is missing"))
            };
        }
        if end <= self.received {
            return Ok(true);
        }
        self.gaps = 0;
        let known = usize::try_from(self.received - offset).unwrap_or(usize::MAX);
        self.buffer.extend_from_slice(&bytes[known..]);
        self.received = end;
        while let Some(event) = LinkEvent::decode(&mut self.buffer)? {
            witness(&event);
            let end = self.received - self.buffer.len() as u64;
            self.queue.push_back((end, event));
        }
        Ok(true)
    }

    /// An event that did not come from there.
    pub(super) fn insert(&mut self, event: LinkEvent) {
        let end = self.queue.back().map_or(self.taken, |(end, _)| *end);
        self.queue.push_back((end, event));
    }

    pub(super) fn pop(&mut self) -> Option<LinkEvent> {
        let (end, event) = self.queue.pop_front()?;
        self.taken = end;
        Some(event)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Up to here nothing of it waits in our memory for somebody to take it. What is there of an event that is not whole
    /// counts as handed on: the rest could not come before it is acknowledged.
    fn handed_on(&self) -> u64 {
        if self.queue.is_empty() {
            self.received
        } else {
            self.taken.max(self.acknowledged)
        }
    }

    /// Bytes that wait for somebody to take them.
    pub(super) fn backlog(&self) -> u64 {
        self.received - self.handed_on()
    }

    /// The acknowledgement that is due: a large one, or any where `all`.
    pub(super) fn acknowledge(&mut self, all: bool) -> Option<u64> {
        let place = self.handed_on();
        let ahead = place - self.acknowledged;
        let is_due = ahead >= ACKNOWLEDGE_EVERY || (all && ahead > 0);
        is_due.then(|| {
            self.acknowledged = place;
            place
        })
    }

    /// Whether something was taken that is not acknowledged.
    pub(super) fn is_behind(&self) -> bool {
        self.acknowledged < self.received
    }

    /// The last acknowledgement may be lost.
    pub(super) fn link_down(&mut self) {
        self.acknowledged = 0;
    }
}
