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

    /// From now on so many bytes may be on their way at once.
    pub(super) fn allow(&mut self, allowance: usize) {
        self.allowance = allowance.max(MAX_PAYLOAD);
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

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// A relay that stores pieces as they come.
    #[derive(Default)]
    struct Stored(BTreeMap<String, Vec<u8>>);

    impl Stored {
        fn take(&mut self, piece: &Frame) -> (String, u64) {
            let id = String::from_utf8(piece.key.to_vec()).unwrap();
            let body = self.0.entry(id.clone()).or_default();
            if piece.offset == body.len() as u64 {
                body.extend_from_slice(&piece.payload);
            }
            (id, body.len() as u64)
        }
    }

    #[test]
    fn bodies_take_turns_and_never_more_is_on_its_way_than_allowed() {
        let mut uploads = Uploads::new(4 * MAX_PAYLOAD);
        let mut there = Stored::default();
        uploads.add("one".to_owned(), vec![1; MIB].into());
        uploads.add("two".to_owned(), vec![2; MIB].into());
        let pieces: Vec<Frame> = std::iter::from_fn(|| uploads.next_piece()).collect();
        assert_eq!(pieces.len(), 4);
        assert_eq!(pieces.iter().filter(|piece| piece.key == "one").count(), 2);
        let mut under_way: VecDeque<Frame> = pieces.into();
        while let Some(piece) = under_way.pop_front() {
            let (id, stored) = there.take(&piece);
            uploads.stored(&id, stored);
            under_way.extend(std::iter::from_fn(|| uploads.next_piece()));
            assert!(under_way.len() <= 4);
        }
        assert!(uploads.is_complete("one") && uploads.is_complete("two"));
        assert!(there.0["one"] == vec![1; MIB] && there.0["two"] == vec![2; MIB]);
    }

    #[test]
    fn a_body_begins_again_when_what_was_there_is_gone_in_the_middle() {
        let mut uploads = Uploads::new(4 * MAX_PAYLOAD);
        let mut there = Stored::default();
        let body: Vec<u8> = (0..MIB).map(|at| (at / 1000) as u8).collect();
        uploads.add("one".to_owned(), body.clone().into());
        let mut under_way: VecDeque<Frame> = std::iter::from_fn(|| uploads.next_piece()).collect();
        for round in 0..1000 {
            let Some(piece) = under_way.pop_front() else { break };
            if round == 7 {
                there.0.clear();
            }
            let (id, stored) = there.take(&piece);
            uploads.stored(&id, stored);
            under_way.extend(std::iter::from_fn(|| uploads.next_piece()));
        }
        assert!(uploads.is_complete("one"));
        assert!(there.0["one"] == body);
    }

    #[test]
    fn another_link_goes_on_where_the_target_says() {
        let mut uploads = Uploads::new(MIB);
        for id in ["some", "none", "whole", "used"] {
            uploads.add(id.to_owned(), vec![7; 3 * MAX_PAYLOAD].into());
        }
        while let Some(piece) = uploads.next_piece() {
            let id = String::from_utf8(piece.key.to_vec()).unwrap();
            let stored = piece.offset + piece.payload.len() as u64;
            if id == "used" || piece.offset == 0 {
                uploads.stored(&id, stored);
            }
        }
        // In a look, what is told goes on from what was confirmed.
        uploads.link_down();
        let offsets = |uploads: &mut Uploads| -> BTreeSet<(Vec<u8>, u64)> {
            std::iter::from_fn(|| uploads.next_piece())
                .map(|piece| (piece.key.to_vec(), piece.offset / MAX_PAYLOAD as u64))
                .collect()
        };
        let again = offsets(&mut uploads);
        for id in [&b"some"[..], b"none", b"whole"] {
            assert!(again.contains(&(id.to_vec(), 1)) && !again.contains(&(id.to_vec(), 0)));
        }
        let blobs = BTreeMap::from([("some".to_owned(), 2 * MAX_PAYLOAD as u64)]);
        uploads.found(&blobs, &BTreeSet::from(["whole".to_owned()]));
        let expected = [
            (b"none".to_vec(), 0),
            (b"none".to_vec(), 1),
            (b"none".to_vec(), 2),
            (b"some".to_vec(), 2),
        ];
        assert_eq!(offsets(&mut uploads), BTreeSet::from(expected));
        // What is not there though it was whole has been used, unless the target says otherwise.
        assert!(uploads.is_complete("used") && uploads.is_complete("whole"));
        uploads.restart("used");
        assert!(!uploads.is_complete("used"));
        assert_eq!(offsets(&mut uploads).len(), 3);
    }
}
