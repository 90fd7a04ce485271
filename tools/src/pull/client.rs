//! Requests to a hub: redirects, the access token, and limits on silence.

use std::time::Duration;

use ureq::http::{HeaderValue, Response, Uri};
use ureq::{Agent, Body};

use crate::error::{Error, Result};
use crate::text::shown;

/// Redirects that are followed.
const REDIRECTS: usize = 8;
/// Silence after which a connection is given up.
const SILENCE: Duration = Duration::from_secs(10);
/// Time for the whole text of a listing.
const LISTING: Duration = Duration::from_secs(60);

/// A client of one hub.
pub struct Client {
    agent: Agent,
    /// The address of the hub, to which alone the token is sent.
    endpoint: Uri,
    token: Option<String>,
    name: String,
}

impl Client {
    /// A client for the repository `name` of the hub at `endpoint`.
    pub fn new(endpoint: &str, token: Option<String>, name: &str) -> Result<Self> {
        let wrong = || Error::usage(format!("HF_ENDPOINT: {endpoint:?} is not an address"));
        let config = Agent::config_builder()
            .timeout_connect(Some(Duration::from_secs(20)))
            .timeout_recv_response(Some(Duration::from_secs(20)))
            .timeout_per_read(Some(SILENCE))
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("waterline/", env!("CARGO_PKG_VERSION")))
            .build();
        let endpoint: Uri = endpoint.parse().map_err(|_| wrong())?;
        if endpoint.host().is_none() || !is_web(&endpoint) {
            return Err(wrong());
        }
        Ok(Client {
            agent: config.into(),
            endpoint,
            token,
            name: name.into(),
        })
    }

    /// The text at `url`.
    pub fn text(&self, url: &str) -> Result<String> {
        let mut response = self.response(url, 0, Some(LISTING))?;
        let text = response.body_mut().read_to_string();
        text.map_err(|error| self.failed(url, &error.to_string()))
    }

    /// The response of `url`, from byte `start` on.
    pub fn get(&self, url: &str, start: u64) -> Result<Response<Body>> {
        self.response(url, start, None)
    }

    fn response(&self, url: &str, start: u64, most: Option<Duration>) -> Result<Response<Body>> {
        let mut at: Uri = url
            .parse()
            .map_err(|_| self.failed(url, "it is not an address"))?;
        for _ in 0..=REDIRECTS {
            let response = self.call(&at, start, most);
            let response = response.map_err(|error| self.failed(url, &error.to_string()))?;
            match response.status().as_u16() {
                200 | 206 => return Ok(response),
                301 | 302 | 303 | 307 | 308 => {
                    let place = response.headers().get("location");
                    at = place
                        .and_then(|place| redirected(&at, place))
                        .ok_or_else(|| self.failed(url, "it redirects to no usable address"))?;
                }
                401 | 403 => {
                    let reason = "it needs a token that may read it (HF_TOKEN, or `hf auth login`)";
                    return Err(self.failed(url, reason));
                }
                404 => return Err(self.failed(url, "there is no such repository or file")),
                status => return Err(self.failed(url, &format!("the hub answers {status}"))),
            }
        }
        Err(self.failed(url, "it redirects too often"))
    }

    fn call(
        &self,
        at: &Uri,
        start: u64,
        most: Option<Duration>,
    ) -> Result<Response<Body>, ureq::Error> {
        let mut request = self.agent.get(at).config().timeout_global(most).build();
        if let Some(token) = self.token.as_ref().filter(|_| is_same(at, &self.endpoint)) {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        if start > 0 {
            request = request.header("Range", format!("bytes={start}-"));
        }
        request.call()
    }

    /// An error about `url`.
    pub fn failed(&self, url: &str, reason: &str) -> Error {
        Error::usage(shown(&format!("{}: {url}: {reason}", self.name)))
    }
}

fn is_web(uri: &Uri) -> bool {
    matches!(uri.scheme_str(), Some("http" | "https"))
}

/// Whether both addresses have one scheme, host and port.
fn is_same(one: &Uri, other: &Uri) -> bool {
    let port = |uri: &Uri| {
        let usual = if uri.scheme_str() == Some("https") {
            443
        } else {
            80
        };
        uri.port_u16().unwrap_or(usual)
    };
    let host = |uri: &Uri| uri.host().map(str::to_ascii_lowercase);
    one.scheme() == other.scheme() && host(one) == host(other) && port(one) == port(other)
}

/// The address to which `from` redirects. An encrypted connection is not followed by a plain one.
fn redirected(from: &Uri, place: &HeaderValue) -> Option<Uri> {
    let place = place.to_str().ok()?;
    let (scheme, authority) = (from.scheme_str()?, from.authority()?);
    let whole = if place.contains("://") {
        place.to_string()
    } else if place.starts_with("//") {
        format!("{scheme}:{place}")
    } else if place.starts_with('/') {
        format!("{scheme}://{authority}{place}")
    } else {
        let folder = from.path().rsplit_once('/')?.0;
        format!("{scheme}://{authority}{folder}/{place}")
    };
    let to: Uri = whole.parse().ok()?;
    (is_web(&to) && (scheme != "https" || to.scheme_str() == Some("https"))).then_some(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_resolved_and_stay_encrypted() {
        let to = |from: &'static str, place: &'static str| {
            let from = Uri::from_static(from);
            redirected(&from, &HeaderValue::from_static(place)).map(|uri| uri.to_string())
        };
        let from = "https://hub.example/a/b/c?d";
        for (place, expected) in [
            ("/x?y=z", Some("https://hub.example/x?y=z")),
            ("x", Some("https://hub.example/a/b/x")),
            ("//far.example/x", Some("https://far.example/x")),
            ("https://far.example:8/x", Some("https://far.example:8/x")),
            ("http://hub.example/x", None),
            ("file:///etc/passwd", None),
            ("", Some("https://hub.example/a/b/")),
        ] {
            assert_eq!(to(from, place).as_deref(), expected, "{place}");
        }
        assert!(to("http://hub.example:1/x", "http://hub.example:2/x").is_some());
    }

    #[test]
    fn another_scheme_host_or_port_is_another_place() {
        let hub = Uri::from_static("https://hub.example/models");
        for (other, same) in [
            ("https://HUB.example:443/x", true),
            ("https://hub.example:444/x", false),
            ("http://hub.example/x", false),
            ("https://a.hub.example/x", false),
            ("https://hub.example.evil/x", false),
        ] {
            assert_eq!(is_same(&hub, &Uri::from_static(other)), same, "{other}");
        }
    }
}
