//! Frames between broker and relay: a header of 18 bytes, a key, a payload.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// The longest payload of a frame.
pub(super) const MAX_PAYLOAD: usize = 65_536;
/// Size of a frame without key and payload.
pub(super) const HEADER: usize = 18;
/// The longest key: numbers, calls and blobs have short names.
const MAX_KEY: usize = 256;
const MAGIC: [u8; 2] = *b"TF";

/// Kinds of frames; small letters and `R G O Q E` come from the relay.
pub(super) mod kind {
    /// What the broker has.
    pub(in crate::file_rpc) const RESUME: u8 = b'H';
    /// A command.
    pub(in crate::file_rpc) const COMMAND: u8 = b'C';
    /// A piece of a blob.
    pub(in crate::file_rpc) const BLOB: u8 = b'B';
    /// A command that lies in a blob.
    pub(in crate::file_rpc) const COMMAND_BLOB: u8 = b'D';
    /// The answer to a call.
    pub(in crate::file_rpc) const ANSWER: u8 = b'A';
    /// An answer that lies in a blob.
    pub(in crate::file_rpc) const ANSWER_BLOB: u8 = b'a';
    /// The log is acknowledged.
    pub(in crate::file_rpc) const ACKNOWLEDGED: u8 = b'K';
    /// Bytes of this link that are consumed.
    pub(in crate::file_rpc) const WINDOW: u8 = b'W';
    /// A sign of the broker.
    pub(in crate::file_rpc) const LEASE: u8 = b'L';
    /// The end of a look, in both directions.
    pub(in crate::file_rpc) const LOOK: u8 = b'Z';
    /// First frame of a link.
    pub(in crate::file_rpc) const READY: u8 = b'R';
    /// The session has ended.
    pub(in crate::file_rpc) const GONE: u8 = b'G';
    /// A command is stored.
    pub(in crate::file_rpc) const COMMAND_STORED: u8 = b'c';
    /// A piece of a blob is stored.
    pub(in crate::file_rpc) const BLOB_STORED: u8 = b'b';
    /// Bytes of the event log.
    pub(in crate::file_rpc) const LOG: u8 = b'O';
    /// Bytes of a request.
    pub(in crate::file_rpc) const CALL: u8 = b'Q';
    /// A call is settled.
    pub(in crate::file_rpc) const SETTLED: u8 = b'q';
    /// Something could not be stored.
    pub(in crate::file_rpc) const REFUSED: u8 = b'E';
    /// The echo of a sign.
    pub(in crate::file_rpc) const ALIVE: u8 = b'l';
}

/// Why bytes are no frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameError {
    /// They do not begin as one.
    #[error("what came is no frame of the directory protocol")]
    NoFrame,
    /// It is longer than any.
    #[error("a frame of the directory protocol is longer than any may be")]
    TooLong,
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// See [`kind`].
    pub(super) kind: u8,
    /// Whether nothing follows that belongs to it.
    pub(super) last: bool,
    /// What it is about.
    pub(super) key: Bytes,
    /// A place, or another number.
    pub(super) offset: u64,
    /// The bytes.
    pub(super) payload: Bytes,
}

impl Frame {
    /// A frame that says a number.
    #[must_use]
    pub(super) fn number(kind: u8, offset: u64) -> Self {
        Self {
            kind,
            last: true,
            key: Bytes::new(),
            offset,
            payload: Bytes::new(),
        }
    }

    /// A frame about something, with all of its bytes.
    #[must_use]
    pub(super) fn whole(kind: u8, key: impl Into<Bytes>, payload: impl Into<Bytes>) -> Self {
        Self {
            kind,
            last: true,
            key: key.into(),
            offset: 0,
            payload: payload.into(),
        }
    }

    /// Bytes that it takes on a link.
    #[must_use]
    pub(super) fn size(&self) -> usize {
        HEADER + self.key.len() + self.payload.len()
    }

    /// Appends it to what is to be sent.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "keys and payloads are cut to their limits"
    )]
    pub(super) fn encode(&self, out: &mut BytesMut) {
        debug_assert!(self.key.len() <= MAX_KEY && self.payload.len() <= MAX_PAYLOAD);
        out.reserve(self.size());
        out.put_slice(&MAGIC);
        out.put_u8(self.kind);
        out.put_u8(self.last.into());
        out.put_u16(self.key.len() as u16);
        out.put_u32(self.payload.len() as u32);
        out.put_u64(self.offset);
        out.put_slice(&self.key);
        out.put_slice(&self.payload);
    }

    /// Takes one frame from the front of what has arrived, if it is complete.
    ///
    /// # Errors
    /// When the bytes are no frame: the link is out of step.
    pub(super) fn decode(buffer: &mut BytesMut) -> Result<Option<Self>, FrameError> {
        let seen = buffer.len().min(MAGIC.len());
        if buffer[..seen] != MAGIC[..seen] {
            return Err(FrameError::NoFrame);
        }
        let Some(mut header) = buffer.get(2..HEADER) else {
            return Ok(None);
        };
        let kind = header.get_u8();
        let last = header.get_u8() == 1;
        let key = usize::from(header.get_u16());
        let payload = header.get_u32() as usize;
        let offset = header.get_u64();
        if key > MAX_KEY || payload > MAX_PAYLOAD {
            return Err(FrameError::TooLong);
        }
        if buffer.len() < HEADER + key + payload {
            return Ok(None);
        }
        buffer.advance(HEADER);
        let key = buffer.split_to(key).freeze();
        let payload = buffer.split_to(payload).freeze();
        Ok(Some(Self {
            kind,
            last,
            key,
            offset,
            payload,
        }))
    }
}

/// Frames that carry a text which may be longer than one of them, as `H` and `R` may.
pub(super) fn cut(kind: u8, text: &Bytes) -> impl Iterator<Item = Frame> {
    let pieces = text.len().div_ceil(MAX_PAYLOAD).max(1);
    (0..pieces).map(move |piece| {
        let start = piece * MAX_PAYLOAD;
        let end = text.len().min(start + MAX_PAYLOAD);
        Frame {
            last: piece + 1 == pieces,
            ..Frame::whole(kind, Bytes::new(), text.slice(start..end))
        }
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frames() -> impl Strategy<Value = Vec<Frame>> {
        let frame = (
            any::<u8>(),
            any::<bool>(),
            prop::collection::vec(any::<u8>(), 0..40),
            any::<u64>(),
            prop::collection::vec(any::<u8>(), 0..300),
        );
        let frame = frame.prop_map(|(kind, last, key, offset, payload)| Frame {
            kind,
            last,
            key: key.into(),
            offset,
            payload: payload.into(),
        });
        prop::collection::vec(frame, 0..8)
    }

    proptest! {
        #[test]
        fn frames_come_back_however_they_are_cut(frames in frames(), step in 1_usize..200) {
            let mut out = BytesMut::new();
            for frame in &frames {
                frame.encode(&mut out);
            }
            let mut arrived = BytesMut::new();
            let mut decoded = Vec::new();
            for piece in out.chunks(step) {
                arrived.extend_from_slice(piece);
                while let Some(frame) = Frame::decode(&mut arrived).unwrap() {
                    decoded.push(frame);
                }
            }
            prop_assert_eq!(decoded, frames);
            prop_assert!(arrived.is_empty());
        }
    }

    #[test]
    fn what_is_no_frame_is_an_error_at_its_first_byte() {
        for (bytes, error) in [
            (&b"x"[..], FrameError::NoFrame),
            (b"Tx", FrameError::NoFrame),
            (b"TFO\x01\xff\xff\0\0\0\0\0\0\0\0\0\0\0\0", FrameError::TooLong),
            (b"TFO\x01\0\0\xff\0\0\0\0\0\0\0\0\0\0\0", FrameError::TooLong),
        ] {
            assert_eq!(Frame::decode(&mut BytesMut::from(bytes)), Err(error), "{bytes:?}");
        }
        assert_eq!(Frame::decode(&mut BytesMut::new()), Ok(None));
    }

    #[test]
    fn a_long_text_is_cut_and_only_its_end_is_final() {
        for (size, expected) in [
            (0, 1),
            (1, 1),
            (MAX_PAYLOAD, 1),
            (MAX_PAYLOAD + 1, 2),
            (3 * MAX_PAYLOAD, 3),
        ] {
            let text = Bytes::from(vec![b'x'; size]);
            let frames: Vec<Frame> = cut(kind::READY, &text).collect();
            assert_eq!(frames.len(), expected, "{size}");
            assert_eq!(frames.iter().filter(|frame| frame.last).count(), 1);
            assert!(frames.last().unwrap().last);
            assert_eq!(frames.iter().map(|frame| frame.payload.len()).sum::<usize>(), size);
        }
    }
}
