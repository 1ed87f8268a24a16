//! Tells the messages of a process from the output that they stand in.

use bytes::{Buf, Bytes, BytesMut};

/// Kind, whether it is the last piece, and a length of two bytes.
const HEADER: usize = 4;

/// Bytes that are read at once.
const READ: usize = 1 << 16;

/// What a process wrote.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Output of its own.
    Output(Bytes),
    /// Part of a message.
    Message { kind: u8, is_last: bool, body: Bytes },
}

/// Cuts the stream of a process at the marks.
pub(super) struct Splitter {
    mark: [u8; 16],
    buffer: BytesMut,
}

impl Splitter {
    /// With what was already read of the stream.
    pub(super) fn new(mark: [u8; 16], buffer: BytesMut) -> Self {
        Self { mark, buffer }
    }

    /// Where the stream is read into.
    pub(super) fn buffer(&mut self) -> &mut BytesMut {
        self.buffer.reserve(READ);
        &mut self.buffer
    }

    /// The next piece that is whole. Output that may be the beginning of a mark waits for what follows.
    pub(super) fn next(&mut self) -> Option<Piece> {
        let output = self.output();
        if output > 0 {
            return Some(Piece::Output(self.buffer.split_to(output).freeze()));
        }
        let head = self.mark.len() + HEADER;
        let [kind, last, high, low] = *self.buffer.get(self.mark.len()..head)? else {
            return None;
        };
        let size = usize::from(u16::from_be_bytes([high, low]));
        if self.buffer.len() < head + size {
            return None;
        }
        self.buffer.advance(head);
        Some(Piece::Message {
            kind,
            is_last: last != 0,
            body: self.buffer.split_to(size).freeze(),
        })
    }

    /// What is left once the stream has ended: output, or a message that was cut short.
    pub(super) fn rest(&mut self) -> Bytes {
        let rest = self.buffer.split().freeze();
        if rest.starts_with(&self.mark) {
            Bytes::new()
        } else {
            rest
        }
    }

    /// Bytes in front that are no mark, nor the beginning of one.
    fn output(&self) -> usize {
        let mut at = 0;
        while let Some(found) = self.buffer[at..].iter().position(|byte| *byte == self.mark[0]) {
            at += found;
            let there = &self.buffer[at..];
            let length = there.len().min(self.mark.len());
            if there[..length] == self.mark[..length] {
                return at;
            }
            at += 1;
        }
        self.buffer.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: [u8; 16] = *b"!!0123456789abcd";

    fn message(kind: u8, last: u8, body: &[u8]) -> Vec<u8> {
        let size = u16::try_from(body.len()).unwrap_or_default().to_be_bytes();
        [&MARK[..], &[kind, last], &size, body].concat()
    }

    type Messages = Vec<(u8, bool, Vec<u8>)>;

    /// Output and messages of a stream that comes in pieces of this size.
    fn split(stream: &[u8], step: usize) -> (Vec<u8>, Messages) {
        let mut splitter = Splitter::new(MARK, BytesMut::new());
        let (mut output, mut messages) = (Vec::new(), Vec::new());
        for piece in stream.chunks(step) {
            splitter.buffer().extend_from_slice(piece);
            while let Some(piece) = splitter.next() {
                match piece {
                    Piece::Output(data) => output.extend_from_slice(&data),
                    Piece::Message { kind, is_last, body } => messages.push((kind, is_last, body.to_vec())),
                }
            }
        }
        output.extend_from_slice(&splitter.rest());
        (output, messages)
    }

    #[test]
    fn messages_are_found_wherever_the_stream_is_cut() {
        let stream = [
            b"a!b!!0123".to_vec(),
            message(b'Q', 0, b"half"),
            message(b'Q', 1, b""),
            b"!".to_vec(),
            message(b'D', 1, b"!!0123456789abc"),
            b"end!!01".to_vec(),
        ]
        .concat();
        for step in 1..stream.len() {
            let (output, messages) = split(&stream, step);
            assert_eq!(output, b"a!b!!0123!end!!01", "{step}");
            let expected = [
                (b'Q', false, b"half".to_vec()),
                (b'Q', true, Vec::new()),
                (b'D', true, b"!!0123456789abc".to_vec()),
            ];
            assert_eq!(messages, expected, "{step}");
        }
    }

    #[test]
    fn a_message_that_was_cut_short_is_no_output() {
        let stream = [b"out".to_vec(), message(b'D', 1, b"0123")].concat();
        assert_eq!(split(&stream[..stream.len() - 2], 7), (b"out".to_vec(), Vec::new()));
    }
}
