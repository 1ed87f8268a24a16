//! Fetching a page: redirects one by one, each judged before it is followed.

use reqwest::StatusCode;
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, LOCATION};
use tokio::time::Instant;
use url::Url;

use super::body::{self, Body};
use super::client::Clients;
use super::failure::{Failure, again_after, proxy_of, with_attempts};
use super::kind::{ContentType, Kind};

/// Redirects that are followed for one page.
const MOST_REDIRECTS: usize = 10;

/// What was fetched.
pub(super) struct Fetched {
    /// Where it was found in the end.
    pub(super) url: Url,
    /// What the server says it is.
    pub(super) content_type: Option<String>,
    pub(super) body: Body,
}

/// Where an answer leads.
enum Step {
    Here(Fetched),
    Elsewhere(Url),
}

/// Fetches a page, `cap` decoded bytes of it at most.
///
/// # Errors
/// A sentence that reads after the page's address.
pub(super) async fn fetch(clients: &Clients, url: Url, cap: usize, deadline: Instant) -> Result<Fetched, String> {
    let mut seen = vec![url];
    loop {
        let url = seen[seen.len() - 1].clone();
        clients.guard.check(&url).map_err(|why| after_redirect(&seen, &why))?;
        let step = with_attempts(deadline, || attempt(clients, &url, cap))
            .await
            .map_err(|failure| after_redirect(&seen, &failure.sentence))?;
        let next = match step {
            Step::Here(fetched) => return Ok(fetched),
            Step::Elsewhere(next) => next,
        };
        if seen.contains(&next) {
            return Err(after_redirect(
                &seen,
                "it redirects in a circle (some sites do without cookies); try another address",
            ));
        }
        if seen.len() > MOST_REDIRECTS {
            return Err(format!(
                "more than {MOST_REDIRECTS} redirects; try the address that they lead to"
            ));
        }
        seen.push(next);
    }
}

/// Says where a failure happened, when it was not at the address that was asked for.
fn after_redirect(seen: &[Url], why: &str) -> String {
    match seen {
        [_] | [] => why.to_owned(),
        [.., last] => format!("redirected to {}: {why}", shown(last)),
    }
}

/// An address for a message: neither long nor with a login.
pub(super) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    // Only addresses without a host refuse these, and they hold neither.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    let text = url.as_str();
    match text.char_indices().nth(200) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}…", &text[..at]),
    }
}

async fn attempt(clients: &Clients, url: &Url, cap: usize) -> Result<Step, Failure> {
    let (client, proxy) = clients.page(url);
    let sent = client.get(url.clone()).send().await;
    let response = sent.map_err(|error| Failure::of_page(&error, proxy))?;
    let status = response.status();
    let headers = response.headers();
    if let Some(next) = redirect(status, headers, url)? {
        return Ok(Step::Elsewhere(next));
    }
    if !status.is_success() {
        return Err(Failure {
            sentence: refusal(status, proxy),
            again: again_after(status, headers),
        });
    }
    let content_type = headers
        .get(CONTENT_TYPE)
        .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let said = ContentType::parse(content_type.as_deref());
    if let Kind::Binary(what) = said.kind() {
        let size = headers
            .get(CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok()?.parse().ok());
        return Err(Failure::last(no_text(what, &said.essence, size)));
    }
    let body = body::read(response, cap).await?;
    Ok(Step::Here(Fetched {
        url: url.clone(),
        content_type,
        body,
    }))
}

/// Says of what holds no text what it is.
pub(super) fn no_text(what: &str, essence: &str, size: Option<u64>) -> String {
    let mut details: Vec<String> = Vec::new();
    if !essence.is_empty() {
        details.push(essence.chars().take(100).collect());
    }
    if let Some(size) = size {
        details.push(format!("{size} bytes"));
    }
    let details = if details.is_empty() {
        String::new()
    } else {
        format!(" ({})", details.join(", "))
    };
    format!("it is {what}{details}, which holds no text; if the file itself is wanted, download it with terminal()")
}

fn redirect(status: StatusCode, headers: &HeaderMap, url: &Url) -> Result<Option<Url>, Failure> {
    if !matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let Some(location) = headers.get(LOCATION) else {
        return Err(Failure::last(format!("it answers {status} without saying where to")));
    };
    let location = String::from_utf8_lossy(location.as_bytes());
    let mut next = url
        .join(&location)
        .map_err(|_| Failure::last("it redirects to what is no address"))?;
    // The fragment is for the reader; without it circles are noticed.
    next.set_fragment(None);
    Ok(Some(next))
}

fn refusal(status: StatusCode, proxy: Option<&str>) -> String {
    if let (407, Some(variable)) = (status.as_u16(), proxy) {
        return format!(
            "the answer is {status}: {} wants a login; write it into that variable",
            proxy_of(variable)
        );
    }
    let advice = match status.as_u16() {
        401 | 407 => "it wants a login; choose a page that is public",
        403 | 451 => "the site refuses programs or this place; try another source",
        404 | 410 => "there is no such page; check the address or search for it",
        429 => "too many requests; try again later, or fewer at once",
        500..=599 => "the site fails; try again later",
        _ => "it gives no page",
    };
    format!("the answer is {status}: {advice}")
}
