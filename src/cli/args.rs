//! What the command line takes.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use talaria_broker::config::{Mode, Transport};
use talaria_broker::limits::parse_duration;
use talaria_broker::web::PDF_VERB;

/// Runs Python scripts that call an agent's tools.
#[derive(Parser)]
#[command(name = "talaria", version, about, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// Taken by every verb.
#[derive(Args)]
pub(crate) struct Global {
    /// Configuration file to read instead of the first one found
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Log to stderr what happens (-vv: in detail)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Log to a file instead
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) log_file: Option<PathBuf>,
}

/// What to do.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Run scripts as cells of one session
    Run(Box<Run>),
    /// Say what works here and what does not, and the fix
    Doctor(Doctor),
    /// Check the whole contract on a target
    Conformance(Conformance),
    /// List what of ours is alive: where, how old, whose
    Ls(Ls),
    /// Remove what of ours has no owner any more
    Gc(Gc),
    /// Serve agents and editors that speak the Model Context Protocol
    Mcp(Mcp),
    /// Show what was done: every cell and every tool call, who asked for it, where it ran
    Log(Box<Log>),
    /// Print the tool's schema for a model
    Schema(Schema),
    /// Print the configuration that is in force, and where each value came from
    Config(ConfigVerb),
    /// Read a PDF on standard input and print its text; for the broker's own use
    #[command(name = PDF_VERB, hide = true)]
    ReadPdf,
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// Run scripts as cells of one session, in order, stopping at the first that fails.
#[derive(Args)]
pub(crate) struct Run {
    /// Where it runs: local, docker:IMAGE, container:NAME, compose:SERVICE, exec:COMMAND, ssh:DEST, or a configured name
    #[arg(long, value_name = "TARGET")]
    pub(crate) on: Option<String>,
    /// project: the working directory and its interpreter; strict: a private folder, a fixed interpreter
    #[arg(long, value_parser = mode)]
    pub(crate) mode: Option<Mode>,
    /// Time that each script may run: 300, 90s, 5m, 8h
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) timeout: Option<Duration>,
    /// Tool calls that each script may make
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) max_tool_calls: Option<u64>,
    /// Tools that scripts may call (all that are enabled, if not given)
    #[arg(long, value_name = "TOOL,...", value_delimiter = ',', value_parser = tool)]
    pub(crate) allow: Option<Vec<String>>,
    /// Tools whose calls are asked about here, on the terminal, unless the configuration's rules allow or deny them
    #[arg(long, value_name = "TOOL,...", value_delimiter = ',', value_parser = tool)]
    pub(crate) ask: Vec<String>,
    /// Working directory of the session
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<PathBuf>,
    /// Interpreter to use
    #[arg(long, value_name = "PYTHON")]
    pub(crate) python: Option<PathBuf>,
    /// What a container of ours sees of this machine (again for more)
    #[arg(long, value_name = "SRC:DST[:ro]")]
    pub(crate) mount: Vec<String>,
    /// How the directory on another target is reached: auto, stream, polled
    #[arg(long, value_name = "TRANSPORT", value_parser = transport)]
    pub(crate) transport: Option<Transport>,
    /// Variable that scripts get: by name from here, or with a value
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,
    /// Print one outcome per script as a line of JSON, and nothing else
    #[arg(long)]
    pub(crate) json: bool,
    /// Go on after a script that failed
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// Code to run, before the scripts
    #[arg(short, value_name = "CODE")]
    pub(crate) code: Vec<String>,
    /// Scripts to run; - is standard input
    #[arg(value_name = "SCRIPT")]
    pub(crate) scripts: Vec<PathBuf>,
    /// Arguments of the scripts, as sys.argv shows them
    #[arg(last = true, value_name = "ARGS")]
    pub(crate) arguments: Vec<OsString>,
}

/// Check this machine.
#[derive(Args)]
pub(crate) struct Doctor {
    /// The target to try [default: the one that `run` would take]
    #[arg(value_name = "TARGET")]
    pub(crate) target: Option<String>,
}

/// Check the whole contract on a target: runs a hundred small cases there, and says of each whether it holds. Exit code 0
/// when all hold, 1 when one does not, 125 when the target cannot be reached and nothing ran.
#[derive(Args)]
pub(crate) struct Conformance {
    /// The target [default: the one that `run` would take]
    #[arg(value_name = "TARGET")]
    pub(crate) target: Option<String>,
    /// Only cases whose name (AREA::CASE) holds one of these
    #[arg(value_name = "FILTER")]
    pub(crate) filters: Vec<String>,
    /// Sessions side by side, each a sandbox or container where the target makes one [default: 2 on those, else 4]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=32))]
    pub(crate) jobs: Option<u16>,
    /// The longest that one case may take
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "5m")]
    pub(crate) limit: Duration,
    /// How the directory on another target is reached: auto, stream, polled
    #[arg(long, value_name = "TRANSPORT", value_parser = transport)]
    pub(crate) transport: Option<Transport>,
    /// Print one object per case as a line of JSON, then one with the summary, and nothing else
    #[arg(long)]
    pub(crate) json: bool,
    /// Print the names of the cases, and run none
    #[arg(long)]
    pub(crate) list: bool,
}

/// List what of ours is alive: where, how old, whose.
#[derive(Args)]
pub(crate) struct Ls {
    /// Print one object per thing as a line of JSON, and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

/// Remove what of ours has no owner any more: the broker that made it has ended. What cannot be told from here removes
/// itself when its lease runs out.
#[derive(Args)]
pub(crate) struct Gc {
    /// Say what would be removed, and remove nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Serve agents and editors that speak the Model Context Protocol: one client over the standard streams, until it closes
/// them, or any number over HTTP.
#[derive(Args)]
pub(crate) struct Mcp {
    /// Where scripts run unless the client names another configured target [default: the target that `run` would take]
    #[arg(long, value_name = "TARGET")]
    pub(crate) on: Option<String>,
    /// Let clients name any target, and not only those that are configured
    #[arg(long)]
    pub(crate) any_target: bool,
    /// Serve over HTTP instead, at /mcp of this address (127.0.0.1:8765); one that is not loopback needs a token
    #[arg(long, value_name = "ADDR")]
    pub(crate) http: Option<String>,
    /// File of bearer tokens, a line each: TOKEN, or NAME TOKEN [default: the one in TALARIA_MCP_TOKEN]
    #[arg(long, value_name = "FILE", requires = "http")]
    pub(crate) token_file: Option<PathBuf>,
    /// Name that HTTP requests may call this server by, beside localhost and the address (again for more)
    #[arg(long, value_name = "HOST", requires = "http")]
    pub(crate) allow_host: Vec<String>,
    /// Web origin that may ask, such as https://app.example:443; no web page may otherwise (again for more)
    #[arg(long, value_name = "ORIGIN", requires = "http")]
    pub(crate) allow_origin: Vec<String>,
}

/// Show the audit log: cells and tool calls, the newest last.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Log {
    #[command(subcommand)]
    pub(crate) part: Option<LogPart>,
    /// Lines that are shown, the last ones; 0 for all
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    pub(crate) lines: usize,
    /// Only of the session whose name begins so
    #[arg(long, value_name = "NAME")]
    pub(crate) session: Option<String>,
    /// Only of this target
    #[arg(long, value_name = "TARGET")]
    pub(crate) target: Option<String>,
    /// Only calls of this tool
    #[arg(long, value_name = "TOOL")]
    pub(crate) tool: Option<String>,
    /// Only of the last: 90s, 5m, 2h, 7d
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) since: Option<Duration>,
    /// Only what failed, was refused, or has no end
    #[arg(long)]
    pub(crate) failed: bool,
    /// Show the script of each cell
    #[arg(long, conflicts_with = "json")]
    pub(crate) script: bool,
    /// Go on with what is recorded from now on
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Print the lines as they are recorded, in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Parts of the log.
#[derive(Subcommand)]
pub(crate) enum LogPart {
    /// Print a script
    Show {
        /// Its digest, or the beginning of it
        digest: String,
    },
}

/// Print the schema of `execute_code`.
#[derive(Args)]
pub(crate) struct Schema {
    /// Where scripts would run [default: the target that `run` would take]
    #[arg(long, value_name = "TARGET")]
    pub(crate) on: Option<String>,
    /// Tools that scripts may call (all that are enabled, if not given)
    #[arg(long, value_name = "TOOL,...", value_delimiter = ',', value_parser = tool)]
    pub(crate) allow: Option<Vec<String>>,
    /// The form
    #[arg(long, value_enum, default_value_t = SchemaFormat::Mcp)]
    pub(crate) format: SchemaFormat,
}

/// Forms of a tool's schema.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum SchemaFormat {
    /// Model Context Protocol
    Mcp,
    /// `OpenAI` function calling
    Openai,
    /// Anthropic tool use
    Anthropic,
}

/// Print the configuration.
#[derive(Args)]
pub(crate) struct ConfigVerb {
    /// Print a file with every key and its default instead
    #[arg(long)]
    pub(crate) template: bool,
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}

fn tool(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("a tool's name is empty; write for instance read_file,terminal".to_owned()),
        name => Ok(name.to_owned()),
    }
}

fn mode(text: &str) -> Result<Mode, String> {
    text.parse().map_err(|error| format!("{error}"))
}

fn transport(text: &str) -> Result<Transport, String> {
    text.parse().map_err(|error| format!("{error}"))
}
