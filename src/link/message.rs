//! Commands and events, and their form on the wire.
//!
//! A message is a 4-byte big-endian length, a kind byte, and fields of a 4-byte length and bytes
//! each; the other half of this file is `remote_agent/wire.py`.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{LinkError, Reply};

/// No message is larger: beyond it the stream is out of step.
const MAX_MESSAGE: usize = 1 << 30;

/// How a kernel is started.
#[derive(Clone, Debug)]
pub struct KernelStart {
    /// Rises with each kernel of a session.
    pub generation: u64,
    /// Absolute path of the interpreter.
    pub python: Vec<u8>,
    /// Where it starts.
    pub folder: Vec<u8>,
    /// Its whole environment but `PYTHONPATH`.
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// The session's folder on the target.
    pub session_folder: Vec<u8>,
    /// Source of `hermes_tools`.
    pub stub: String,
    /// Variables that are put back before each cell, and the user's `PYTHONPATH`.
    pub link: Vec<(Vec<u8>, Vec<u8>)>,
}

/// One cell.
#[derive(Clone, Debug)]
pub struct RunCell {
    /// 1, 2, 3, … within a session.
    pub cell: u64,
    /// Seconds it may run.
    pub timeout: f64,
    /// Bytes of stdout that are sent; the rest is counted.
    pub stdout_cap: u64,
    /// Bytes of stderr that are sent.
    pub stderr_cap: u64,
    /// The session's working directory: where it cannot be entered, the cell does not begin. Empty: nobody looks.
    pub folder: Vec<u8>,
    /// File name of the source in the session's folder.
    pub name: String,
    /// `sys.argv[1:]`.
    pub arguments: Vec<Vec<u8>>,
    /// Whether the source is a file's bytes (its coding comment counts) or text.
    pub from_file: bool,
    /// Source of `hermes_tools` when it differs from the last one sent.
    pub stub: Option<String>,
    /// The source.
    pub source: Vec<u8>,
    /// Run it as a standalone script.
    pub standalone: bool,
}

/// One command beside the kernel.
#[derive(Clone, Debug)]
pub struct RunJob {
    /// 1, 2, 3, … within a session.
    pub job: u64,
    /// Seconds it may run.
    pub timeout: f64,
    /// Bytes of output that are sent.
    pub output_cap: u64,
    /// Where it starts.
    pub folder: Vec<u8>,
    /// Program (absolute) and arguments.
    pub argv: Vec<Vec<u8>>,
    /// Its whole environment.
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where the script is put for the job's life.
    pub script_path: Vec<u8>,
    /// The script.
    pub script: Vec<u8>,
    /// A file that the job may write and that comes back with its record.
    pub state_path: Vec<u8>,
}

/// One file operation.
#[derive(Clone, Debug)]
pub struct RunVerb {
    /// Of the same series as the numbers of jobs.
    pub number: u64,
    /// `read` or `write`: see `remote_agent/workspace.py`.
    pub verb: &'static str,
    /// The folder at which relative paths start.
    pub folder: Vec<u8>,
    /// What `~` stands for; empty where that is not known.
    pub home: Vec<u8>,
    /// The caller of a tool that the target is to answer: by the verb's result, in the shape that the tool of this
    /// kind gives it.
    pub reply: Option<Arc<Reply>>,
    /// The verb's own.
    pub arguments: Vec<Bytes>,
}

/// What the broker asks of a supervisor.
#[derive(Clone, Debug)]
pub enum LinkCommand {
    /// Start a kernel.
    StartKernel(KernelStart),
    /// Only remember how: cells will be standalone scripts.
    Prepare(KernelStart),
    /// Run a cell.
    RunCell(RunCell),
    /// End a running cell and its kernel, with or without the grace.
    StopCell {
        /// Its number.
        cell: u64,
        /// Whether to kill without grace.
        at_once: bool,
    },
    /// End an idle kernel.
    EndKernel,
    /// Run a job.
    RunJob(RunJob),
    /// End a job, or forget a file operation.
    StopJob(u64),
    /// Do a file operation.
    RunVerb(RunVerb),
    /// End the session.
    Close,
}

/// How a cell ended, as the supervisor judged it.
#[derive(Clone, Debug)]
pub struct CellDone {
    /// Its number.
    pub cell: u64,
    /// `done`, `gone`, `timeout` or `interrupted`.
    pub why: String,
    /// The kernel's wait status, where it ended.
    pub status: Option<i32>,
    /// What else is known of a kernel's end.
    pub detail: String,
    /// Seconds that the cell ran.
    pub seconds: f64,
    /// Bytes of stdout that were not sent, and their tail.
    pub stdout_skipped: (u64, Bytes),
    /// The same for stderr.
    pub stderr_skipped: (u64, Bytes),
    /// What the kernel reported: kind, code, error, missing name, unprinted value.
    pub result: Option<CellResult>,
}

/// What the kernel itself reported of a cell.
#[derive(Clone, Debug, Default)]
pub struct CellResult {
    /// `ok`, `raised` or `exit`.
    pub kind: String,
    /// The exit code.
    pub code: i32,
    /// The exception's last line, or the text given to `sys.exit`.
    pub error: String,
    /// The name that an import or name error could not find; of a syntax error in the cell, its line.
    pub missing: String,
    /// Whether the last line was an expression with a value.
    pub unprinted: bool,
}

/// How a job ended.
#[derive(Clone, Debug)]
pub struct JobDone {
    /// Its number.
    pub job: u64,
    /// `exit`, `timeout`, `stopped` or `failed`.
    pub why: String,
    /// The shell's wait status.
    pub status: Option<i32>,
    /// Why it failed.
    pub detail: String,
    /// Bytes of output that were not sent, and their tail.
    pub skipped: (u64, Bytes),
    /// What it wrote to its state file.
    pub state: Bytes,
}

/// What a file operation came to.
#[derive(Clone, Debug)]
pub struct VerbDone {
    /// Its number.
    pub number: u64,
    /// Whether it was done.
    pub ok: bool,
    /// Whether the call that it was for has been answered over there.
    pub answered: bool,
    /// Its results; or one sentence that says what went wrong.
    pub fields: Vec<Bytes>,
}

/// What a supervisor tells.
#[derive(Clone, Debug)]
pub enum LinkEvent {
    /// It has begun; the folders it made, the session's own first.
    Hello(Vec<String>),
    /// A kernel is ready.
    KernelReady {
        /// Which.
        generation: u64,
        /// `3.11.7`.
        version: String,
        /// Path of its interpreter.
        python: String,
    },
    /// A kernel could not be started.
    KernelFailed {
        /// Which.
        generation: u64,
        /// Its wait status, where it had one.
        status: Option<i32>,
        /// What is known.
        detail: String,
    },
    /// A kernel ended while no cell ran.
    KernelLost {
        /// Which.
        generation: u64,
        /// Its wait status.
        status: Option<i32>,
        /// What is known.
        detail: String,
        /// Processes that are left of the session.
        remaining: u64,
    },
    /// Output of a cell.
    CellOutput {
        /// Its number.
        cell: u64,
        /// Whether it is stderr.
        stderr: bool,
        /// The bytes.
        data: Bytes,
    },
    /// A cell ended.
    CellDone(CellDone),
    /// Output of a job.
    JobOutput {
        /// Its number.
        job: u64,
        /// The bytes.
        data: Bytes,
    },
    /// A job ended.
    JobDone(JobDone),
    /// A file operation ended.
    VerbDone(VerbDone),
}

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
