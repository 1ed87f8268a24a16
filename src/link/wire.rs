//! The form of commands and events on the wire.
//!
//! A message is a 4-byte big-endian length, a kind byte, and fields of a 4-byte length and bytes
//! each; the other half of this file is `remote_agent/wire.py`.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::LinkError;
use super::message::{
    CellDone, CellResult, JobDone, KernelStart, LinkCommand, LinkEvent, RunCell, RunJob, RunVerb, VerbDone,
};

/// No message is larger: beyond it the stream is out of step.
const MAX_MESSAGE: usize = 1 << 30;

struct Packer(BytesMut);

impl Packer {
    fn new(kind: u8) -> Self {
        let mut buffer = BytesMut::with_capacity(256);
        buffer.put_u32(0);
        buffer.put_u8(kind);
        Self(buffer)
    }

    #[expect(clippy::cast_possible_truncation, reason = "messages are far below 4 GiB")]
    fn field(mut self, data: impl AsRef<[u8]>) -> Self {
        let data = data.as_ref();
        self.0.put_u32(data.len() as u32);
        self.0.put_slice(data);
        self
    }

    fn number(self, value: impl ToString) -> Self {
        self.field(value.to_string())
    }

    #[expect(clippy::cast_possible_truncation, reason = "messages are far below 4 GiB")]
    fn finish(mut self) -> Bytes {
        let size = (self.0.len() - 4) as u32;
        self.0[..4].copy_from_slice(&size.to_be_bytes());
        self.0.freeze()
    }
}

/// A message of any kind.
pub(crate) fn pack(kind: u8, fields: &[&[u8]]) -> Bytes {
    fields.iter().fold(Packer::new(kind), Packer::field).finish()
}

/// The fields of a message that came whole, length and all.
///
/// # Errors
/// When it is none.
pub(crate) fn unpack(mut message: Bytes) -> Result<Vec<Bytes>, LinkError> {
    if message.len() < 5 {
        return Err(LinkError::Malformed("a message is cut short"));
    }
    message.advance(5);
    Fields(message).rest()
}

/// Variables as one field.
pub(crate) fn variables(pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut packed = Vec::new();
    for (name, value) in pairs {
        if !packed.is_empty() {
            packed.push(0);
        }
        packed.extend_from_slice(name);
        packed.push(b'=');
        packed.extend_from_slice(value);
    }
    packed
}

impl LinkCommand {
    /// The command as bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        match self {
            Self::StartKernel(start) => start.encode(b'K'),
            Self::Prepare(start) => start.encode(b'S'),
            Self::RunCell(run) => run.encode(),
            Self::StopCell { cell, at_once } => Packer::new(b'X')
                .number(cell)
                .field(if *at_once { "now" } else { "grace" })
                .finish(),
            Self::HoldCell { cell, at_most } => Packer::new(b'P').number(cell).number(at_most.as_secs_f64()).finish(),
            Self::EndKernel => Packer::new(b'E').finish(),
            Self::RunJob(job) => job.encode(),
            Self::StopJob(job) => Packer::new(b'Q').number(job).finish(),
            Self::RunVerb(verb) => verb.encode(),
            Self::Close => Packer::new(b'Z').finish(),
        }
    }
}

impl KernelStart {
    fn encode(&self, kind: u8) -> Bytes {
        Packer::new(kind)
            .number(self.generation)
            .field(&self.python)
            .field(&self.folder)
            .field(variables(&self.environment))
            .field(&self.session_folder)
            .field(&self.stub)
            .field(variables(&self.link))
            .finish()
    }
}

impl CellResult {
    /// What a kernel wrote of a cell that stood alone: a whole message.
    ///
    /// # Errors
    /// When it is none.
    pub(crate) fn decode(mut message: Bytes) -> Result<Option<Self>, LinkError> {
        if message.len() < 5 {
            return Err(LinkError::Malformed("a message is cut short"));
        }
        message.advance(5);
        Fields(message).cell_result()
    }
}

impl RunCell {
    /// The arguments as one field.
    pub(crate) fn packed_arguments(&self) -> Vec<u8> {
        let mut arguments = Vec::new();
        for argument in &self.arguments {
            arguments.push(0);
            arguments.extend_from_slice(argument);
        }
        arguments
    }

    fn encode(&self) -> Bytes {
        Packer::new(if self.standalone { b'1' } else { b'C' })
            .number(self.cell)
            .number(self.timeout)
            .number(self.stdout_cap)
            .number(self.stderr_cap)
            .field(&self.folder)
            .field(&self.name)
            .field(self.packed_arguments())
            .field(if self.from_file { "bytes" } else { "text" })
            .field(self.stub.as_deref().unwrap_or_default())
            .field(&self.source)
            .finish()
    }
}

impl RunJob {
    fn encode(&self) -> Bytes {
        Packer::new(b'J')
            .number(self.job)
            .number(self.timeout)
            .number(self.output_cap)
            .field(&self.folder)
            .field(self.argv.join(&0))
            .field(variables(&self.environment))
            .field(&self.script_path)
            .field(&self.script)
            .field(&self.state_path)
            .finish()
    }
}

impl RunVerb {
    fn encode(&self) -> Bytes {
        let message = Packer::new(b'V')
            .number(self.number)
            .field(self.verb)
            .field(&self.folder)
            .field(&self.home)
            .field(self.reply.as_ref().map_or("", |reply| reply.call()));
        self.arguments.iter().fold(message, Packer::field).finish()
    }
}

struct Fields(Bytes);

impl Fields {
    fn bytes(&mut self) -> Result<Bytes, LinkError> {
        if self.0.len() < 4 {
            return Err(LinkError::Malformed("a field is missing"));
        }
        let size = self.0.get_u32() as usize;
        if self.0.len() < size {
            return Err(LinkError::Malformed("a field is cut short"));
        }
        Ok(self.0.split_to(size))
    }

    fn rest(&mut self) -> Result<Vec<Bytes>, LinkError> {
        let mut rest = Vec::new();
        while !self.0.is_empty() {
            rest.push(self.bytes()?);
        }
        Ok(rest)
    }

    fn text(&mut self) -> Result<String, LinkError> {
        Ok(String::from_utf8_lossy(&self.bytes()?).into_owned())
    }

    fn number<T: std::str::FromStr>(&mut self) -> Result<T, LinkError> {
        self.text()?
            .parse()
            .map_err(|_| LinkError::Malformed("a number is none"))
    }

    fn status(&mut self) -> Result<Option<i32>, LinkError> {
        let text = self.text()?;
        if text.is_empty() {
            return Ok(None);
        }
        text.parse()
            .map(Some)
            .map_err(|_| LinkError::Malformed("a wait status is none"))
    }

    fn skipped(&mut self) -> Result<(u64, Bytes), LinkError> {
        Ok((self.number()?, self.bytes()?))
    }

    fn cell_result(&mut self) -> Result<Option<CellResult>, LinkError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        Ok(Some(CellResult {
            kind: self.text()?,
            code: self.number::<i64>()?.clamp(i32::MIN.into(), i32::MAX.into()) as i32,
            error: self.text()?,
            missing: self.text()?,
            unprinted: !self.bytes()?.is_empty(),
        }))
    }
}

impl LinkEvent {
    /// Takes one event from the front of what has arrived, if it is complete.
    ///
    /// # Errors
    /// When the bytes are no event.
    pub fn decode(buffer: &mut BytesMut) -> Result<Option<Self>, LinkError> {
        let Some(head) = buffer.first_chunk::<4>() else {
            return Ok(None);
        };
        let size = u32::from_be_bytes(*head) as usize;
        if size == 0 || size > MAX_MESSAGE {
            return Err(LinkError::Malformed("its length is impossible"));
        }
        if buffer.len() < 4 + size {
            buffer.reserve(4 + size - buffer.len());
            return Ok(None);
        }
        buffer.advance(4);
        let mut body = buffer.split_to(size).freeze();
        let kind = body.get_u8();
        Self::parse(kind, Fields(body)).map(Some)
    }

    fn parse(kind: u8, mut fields: Fields) -> Result<Self, LinkError> {
        Ok(match kind {
            b'H' => {
                let mut folders = Vec::new();
                while !fields.0.is_empty() {
                    folders.push(fields.text()?);
                }
                Self::Hello(folders)
            }
            b'R' => Self::KernelReady {
                generation: fields.number()?,
                version: fields.text()?,
                python: fields.text()?,
            },
            b'F' => Self::KernelFailed {
                generation: fields.number()?,
                status: fields.status()?,
                detail: fields.text()?,
            },
            b'L' => Self::KernelLost {
                generation: fields.number()?,
                status: fields.status()?,
                detail: fields.text()?,
                remaining: fields.number()?,
            },
            b'O' => Self::CellOutput {
                cell: fields.number()?,
                stderr: fields.bytes()?.as_ref() == b"2",
                data: fields.bytes()?,
            },
            b'D' => Self::CellDone(CellDone {
                cell: fields.number()?,
                why: fields.text()?,
                status: fields.status()?,
                detail: fields.text()?,
                seconds: fields.number()?,
                stdout_skipped: fields.skipped()?,
                stderr_skipped: fields.skipped()?,
                result: fields.cell_result()?,
            }),
            b'o' => Self::JobOutput {
                job: fields.number()?,
                data: fields.bytes()?,
            },
            b'd' => Self::JobDone(JobDone {
                job: fields.number()?,
                why: fields.text()?,
                status: fields.status()?,
                detail: fields.text()?,
                skipped: fields.skipped()?,
                state: fields.bytes()?,
            }),
            b'v' => {
                let number = fields.number()?;
                let how = fields.bytes()?;
                Self::VerbDone(VerbDone {
                    number,
                    ok: how.starts_with(b"ok"),
                    answered: how.ends_with(b"!"),
                    fields: fields.rest()?,
                })
            }
            _ => return Err(LinkError::Malformed("its kind is unknown")),
        })
    }
}
