//! Opens a file for reading as UTF-8 text, whatever its encoding; refuses what is no text.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use super::{WorkspaceError, failed, is_folder};

/// Bytes by which a file is judged to be text.
const SAMPLE: usize = 8192;
const BUFFER: usize = 256 * 1024;

/// A text file, open.
pub(super) struct Source {
    /// Its text: UTF-8, or what passes for it.
    pub reader: Box<dyn BufRead>,
    /// Its size; 0 for many files of /proc that do hold something.
    pub size: u64,
}

/// A byte order mark is no part of the text, save in UTF-8 when it is wanted `exact`ly as in the file:
/// written back, it would be missed.
pub(super) fn open(path: &Path, exact: bool) -> Result<Source, WorkspaceError> {
    let fail = |error: io::Error| failed("read", path, &error);
    // Looked at before it is opened: opening some devices already does something.
    refuse_special(path, &path.metadata().map_err(fail)?)?;
    let mut file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(fail)?;
    let metadata = file.metadata().map_err(fail)?;
    refuse_special(path, &metadata)?;
    let mut sample = Vec::new();
    file.by_ref()
        .take(SAMPLE as u64)
        .read_to_end(&mut sample)
        .map_err(fail)?;
    let size = metadata.len();
    let reader = match sample.as_slice() {
        [0xff, 0xfe, 0, 0, ..] => return Err(binary(path, "UTF-32 text", size)),
        [0xff, 0xfe, ..] => buffered(Utf16::new(joined(sample, 2, file), u16::from_le_bytes)),
        [0xfe, 0xff, ..] => buffered(Utf16::new(joined(sample, 2, file), u16::from_be_bytes)),
        [0xef, 0xbb, 0xbf, ..] if !exact => buffered(joined(sample, 3, file)),
        other => match binary_kind(other) {
            Some(kind) => return Err(binary(path, kind, size)),
            None => buffered(joined(sample, 0, file)),
        },
    };
    Ok(Source { reader, size })
}

pub(super) fn refuse_special(path: &Path, metadata: &std::fs::Metadata) -> Result<(), WorkspaceError> {
    let kind = metadata.file_type();
    let what = if kind.is_file() {
        return Ok(());
    } else if kind.is_dir() {
        return Err(is_folder(path));
    } else if kind.is_fifo() {
        "a named pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    Err(WorkspaceError(format!(
        "{} is {what}, not a file, and might never end; read it with terminal() and a timeout",
        path.display()
    )))
}

fn binary(path: &Path, kind: &str, size: u64) -> WorkspaceError {
    WorkspaceError(format!(
        "{} is no text but {kind} ({size} bytes); open it in Python or with terminal() instead",
        path.display()
    ))
}

/// Says that a file is no text, which is known already.
pub(super) fn binary_error(path: &Path) -> WorkspaceError {
    let mut sample = Vec::new();
    let file = File::open(path).map(|file| (file.metadata().map_or(0, |metadata| metadata.len()), file));
    let size = file.map_or(0, |(size, file)| {
        // Without a sample it is binary data all the same.
        _ = file.take(SAMPLE as u64).read_to_end(&mut sample);
        size
    });
    binary(path, binary_kind(&sample).unwrap_or("binary data"), size)
}

/// What a file is that is no text, by its first bytes; `None` for text.
pub(in crate::tools) fn binary_kind(sample: &[u8]) -> Option<&'static str> {
    const KINDS: [(&[u8], &str); 16] = [
        (b"\x89PNG\r\n", "a PNG image"),
        (b"\xff\xd8\xff", "a JPEG image"),
        (b"GIF8", "a GIF image"),
        (b"%PDF-", "a PDF document"),
        (b"PK\x03\x04", "a ZIP archive (or a document or package in that format)"),
        (b"\x1f\x8b", "gzip data"),
        (b"BZh", "bzip2 data"),
        (b"\xfd7zXZ", "xz data"),
        (b"\x28\xb5\x2f\xfd", "zstd data"),
        (b"\x7fELF", "an ELF program or library"),
        (b"SQLite format 3\0", "an SQLite database"),
        (b"\xca\xfe\xba\xbe", "a Java class or Mach-O program"),
        (b"\xcf\xfa\xed\xfe", "a Mach-O program"),
        (b"\0asm", "a WebAssembly module"),
        (b"PAR1", "a Parquet table"),
        (b"RIFF", "a RIFF media file"),
    ];
    let strange = sample
        .iter()
        .filter(|byte| matches!(byte, 0..=0x07 | 0x0e..=0x1a | 0x1c..=0x1f | 0x7f))
        .count();
    let has_nul = sample.contains(&0);
    let known = KINDS.iter().find(|(magic, _)| sample.starts_with(magic));
    match known {
        // A few letters are no proof where the rest is text.
        Some((magic, kind)) if has_nul || strange > 0 || magic == b"%PDF-" => Some(kind),
        _ if has_nul || strange * 10 > sample.len() => Some("binary data"),
        _ => None,
    }
}

fn joined(sample: Vec<u8>, skip: u64, file: File) -> impl Read + 'static {
    let mut sample = Cursor::new(sample);
    sample.set_position(skip);
    sample.chain(file)
}

fn buffered(reader: impl Read + 'static) -> Box<dyn BufRead> {
    Box::new(BufReader::with_capacity(BUFFER, reader))
}

/// Turns UTF-16 into UTF-8 as it is read; what is no character becomes U+FFFD.
struct Utf16<R> {
    inner: BufReader<R>,
    unit: fn([u8; 2]) -> u16,
    /// A unit that was read to see whether it completes a pair, and did not.
    held: Option<u16>,
    ready: Cursor<Vec<u8>>,
}

impl<R: Read> Utf16<R> {
    fn new(inner: R, unit: fn([u8; 2]) -> u16) -> Self {
        let inner = BufReader::with_capacity(BUFFER, inner);
        Self {
            inner,
            unit,
            held: None,
            ready: Cursor::default(),
        }
    }

    fn next_unit(&mut self) -> io::Result<Option<u16>> {
        if let Some(unit) = self.held.take() {
            return Ok(Some(unit));
        }
        let mut pair = [0; 2];
        let mut have = 0;
        while have < 2 {
            match self.inner.read(&mut pair[have..])? {
                0 if have == 0 => return Ok(None),
                0 => return Ok(Some(0xfffd)),
                count => have += count,
            }
        }
        Ok(Some((self.unit)(pair)))
    }

    fn next_char(&mut self) -> io::Result<Option<char>> {
        let Some(first) = self.next_unit()? else {
            return Ok(None);
        };
        if !(0xd800..0xdc00).contains(&first) {
            return Ok(Some(
                char::from_u32(first.into()).unwrap_or(char::REPLACEMENT_CHARACTER),
            ));
        }
        let second = self.next_unit()?;
        match second.map(|second| char::decode_utf16([first, second]).next()) {
            Some(Some(Ok(c))) => Ok(Some(c)),
            _ => {
                self.held = second;
                Ok(Some(char::REPLACEMENT_CHARACTER))
            }
        }
    }
}

impl<R: Read> Read for Utf16<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.ready.position() == self.ready.get_ref().len() as u64 {
            let mut text = String::new();
            while text.len() < BUFFER {
                match self.next_char()? {
                    Some(c) => text.push(c),
                    None => break,
                }
            }
            self.ready = Cursor::new(text.into_bytes());
        }
        self.ready.read(buffer)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing test may panic")]
mod tests {
    use super::*;

    fn text_of(bytes: &[u8]) -> Result<Vec<u8>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, bytes).unwrap();
        let mut source = open(&path, false).map_err(|error| error.to_string())?;
        let mut text = Vec::new();
        source.reader.read_to_end(&mut text).unwrap();
        Ok(text)
    }

    #[test]
    fn encodings_become_utf8() {
        let text = "aü€😀\r\n".repeat(5000);
        let little: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let big: Vec<u8> = text.encode_utf16().flat_map(u16::to_be_bytes).collect();
        for bytes in [
            text.clone().into_bytes(),
            [b"\xef\xbb\xbf", text.as_bytes()].concat(),
            [b"\xff\xfe", little.as_slice()].concat(),
            [b"\xfe\xff", big.as_slice()].concat(),
        ] {
            assert_eq!(text_of(&bytes).unwrap(), text.as_bytes());
        }
        // A lone high half before a letter, a lone low half, half a unit at the end.
        let broken = b"\xff\xfe\x00\xd8a\x00\x00\xdcb\x00c";
        assert_eq!(text_of(broken).unwrap(), "\u{fffd}a\u{fffd}b\u{fffd}".as_bytes());
    }

    #[test]
    fn text_and_binary_are_told_apart() {
        for text in [
            &b""[..],
            b"plain",
            b"caf\xe9 in Latin-1",
            b"\x1b[31mcolour\x1b[0m\x08\x0c\ttab",
            b"GIF8 is how it starts, but it is text",
            b"BZh",
        ] {
            assert!(text_of(text).is_ok(), "{text:?}");
        }
        for (bytes, kind) in [
            (&b"a\0b"[..], "binary data (3 bytes)"),
            (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "a PNG image"),
            (b"%PDF-1.7\n", "a PDF document"),
            (b"\x1f\x8b\x08\x00\x00", "gzip data"),
            (b"\x01\x02\x03\x04\x05abc", "binary data"),
            (b"\xff\xfe\0\0a\0\0\0", "UTF-32"),
        ] {
            let error = text_of(bytes).unwrap_err();
            assert!(error.contains(kind), "{bytes:?}: {error}");
        }
    }

    #[test]
    fn what_might_never_end_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, what) in [
            (fifo.as_path(), "named pipe"),
            (&socket, "socket"),
            (Path::new("/dev/zero"), "device"),
        ] {
            let Err(error) = open(path, false) else {
                panic!("{what} was opened")
            };
            assert!(error.to_string().contains(what), "{error}");
        }
    }
}
