//! Bodies that travel to the target in pieces, so that small frames pass between them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use super::frame::{Frame, MAX_PAYLOAD, kind};

/// One body on its way.
struct Upload {
    id: String,
    body: Bytes,
    /// Bytes sent on this link or there before it.
    sent: usize,
    /// Bytes that are there.
    stored: usize,
    end_sent: bool,
    complete: bool,
}

impl Upload {
    fn rewind(&mut self) {
        self.sent = self.stored;
        self.end_sent = self.complete;
    }
}

/// All bodies on their way. They take turns, a piece at a time.
pub(super) struct Uploads {
    queue: VecDeque<Upload>,
    /// Bytes that may be on their way at once.
    allowance: usize,
}

impl Uploads {
    pub(super) fn new(allowance: usize) -> Self {
        Self {
            queue: VecDeque::new(),
            allowance: allowance.max(MAX_PAYLOAD),
        }
    }

    pub(super) fn add(&mut self, id: String, body: Bytes) {
        self.remove(&id);
        self.queue.push_back(Upload {
            id,
            body,
            sent: 0,
            stored: 0,
            end_sent: false,
            complete: false,
        });
    }

    pub(super) fn remove(&mut self, id: &str) {
        self.queue.retain(|upload| upload.id != id);
    }

    fn get(&mut self, id: &str) -> Option<&mut Upload> {
        self.queue.iter_mut().find(|upload| upload.id == id)
    }

    /// Whether all of it is there, as far as is known.
    pub(super) fn is_complete(&self, id: &str) -> bool {
        self.queue.iter().any(|upload| upload.id == id && upload.complete)
    }

    /// The relay has so many bytes of it.
    pub(super) fn stored(&mut self, id: &str, bytes: u64) {
        if let Some(upload) = self.get(id) {
            let before = upload.stored;
            upload.stored = usize::try_from(bytes).unwrap_or(usize::MAX).min(upload.body.len());
            upload.complete = upload.stored == upload.body.len() && upload.end_sent;
            // Its directory was made anew: what was sent after that had nothing to follow.
            if upload.stored < before {
                upload.rewind();
            }
        }
    }

    /// It is not there after all, or not whole.
    pub(super) fn restart(&mut self, id: &str) {
        if let Some(upload) = self.get(id) {
            upload.stored = 0;
            upload.complete = false;
            upload.rewind();
        }
    }

    /// What was on its way is lost.
    pub(super) fn link_down(&mut self) {
        for upload in &mut self.queue {
            upload.rewind();
        }
    }

    /// What a new relay found. A body that was whole and is not there any more has been used, most likely: whoever
    /// names it is told otherwise.
    pub(super) fn found(&mut self, blobs: &BTreeMap<String, u64>, complete: &BTreeSet<String>) {
        for upload in &mut self.queue {
            let size = upload.body.len();
            match blobs.get(&upload.id) {
                Some(bytes) => {
                    upload.complete = complete.contains(&upload.id);
                    upload.stored = usize::try_from(*bytes).unwrap_or(usize::MAX).min(size);
                }
                None if complete.contains(&upload.id) => {
                    upload.complete = true;
                    upload.stored = size;
                }
                None if upload.complete => {}
                None => upload.stored = 0,
            }
            upload.rewind();
        }
    }

    /// The next piece, while there is room for it.
    pub(super) fn next_piece(&mut self) -> Option<Frame> {
        let on_their_way: usize = self
            .queue
            .iter()
            .map(|upload| upload.sent.saturating_sub(upload.stored))
            .sum();
        let room = self.allowance.saturating_sub(on_their_way);
        for _ in 0..self.queue.len() {
            self.queue.rotate_left(1);
            let upload = self.queue.back_mut()?;
            let piece = (upload.body.len() - upload.sent).min(MAX_PAYLOAD);
            if upload.end_sent || piece > room {
                continue;
            }
            let start = upload.sent;
            upload.sent += piece;
            upload.end_sent = upload.sent == upload.body.len();
            return Some(Frame {
                kind: kind::BLOB,
                last: upload.end_sent,
                key: Bytes::copy_from_slice(upload.id.as_bytes()),
                offset: start as u64,
                payload: upload.body.slice(start..upload.sent),
            });
        }
        None
    }

    /// Whether a piece could be sent now or later.
    pub(super) fn is_pending(&self) -> bool {
        self.queue.iter().any(|upload| !upload.complete)
    }
}
