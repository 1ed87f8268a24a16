//! From the raw bytes of a cell's stdout and stderr to what its outcome shows.
//!
//! Each stream runs through the same stages, every one of them incremental and bounded in memory,
//! so that chunks may be cut anywhere and a script may print without end:
//!
//! ```text
//! raw bytes ─ decode ─ escapes ─ mask ─┬─ live stream
//!                                      ├─ spill file (stdout only)
//!                                      └─ progress ─ window ─ the outcome
//! ```
//!
//! | stage | does | holds back at most |
//! | --- | --- | --- |
//! | `decode` | UTF-8, invalid bytes become U+FFFD | 3 bytes |
//! | `escapes` | drops terminal escape sequences | one string sequence, 64 KiB |
//! | `mask` | replaces secret values by `***` | the longest value |
//! | `progress` | a line redrawn with `\r` keeps its last drawing | two drawings of 64 KiB |
//! | `window` | first 40 % and last 60 % of the limit | about twice the limit |
//! | `spill` | keeps the whole text in a private file | the limit, then a write buffer |
//!
//! [`Collector`] ties them together for one cell; [`clean_text`] does the same for a short text.

mod cache;
mod clean;
mod collector;
mod decode;
mod escapes;
mod marker;
mod mask;
mod progress;
mod spill;
#[cfg(test)]
mod tests;
mod window;

pub(crate) use cache::hermes_home;
pub use cache::{SPILL_PREFIXES, prune, spill_dir};
pub use clean::clean_text;
pub use collector::{Collected, Collector, OutputLimits, Stream, Truncation};
pub use mask::{MaskError, Masker};
pub use spill::keep_page;
