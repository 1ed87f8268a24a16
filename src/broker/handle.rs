//! Handles that nobody can guess: who knows one has been given it.

/// Random bytes in a handle; two hexadecimal digits each.
const RANDOM_BYTES: usize = 20;

/// The system gave no random bytes.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the system gave no random bytes for a handle ({0}); try again")]
pub struct NoRandom(getrandom::Error);

/// A new handle: `prefix`, and 160 random bits.
pub(super) fn new_handle(prefix: &str) -> Result<String, NoRandom> {
    let mut random = [0; RANDOM_BYTES];
    getrandom::fill(&mut random).map_err(NoRandom)?;
    let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{prefix}{digits}"))
}
