//! A client of OpenAI's streamed completions, which notes when each part of an answer arrives.

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ureq::Agent;

use crate::error::{Error, Result};
use crate::text::shown;

/// Time limit for connecting, and for the first byte of a response.
const CONNECT: Duration = Duration::from_secs(30);
const RESPONSE: Duration = Duration::from_secs(600);
/// Idle connections that are kept.
const IDLE: usize = 1024;
/// Maximum length of an error from a server.
const ERROR: u64 = 2000;

/// A server and the interface that requests use.
pub struct Server {
    agent: Agent,
    url: String,
    key: Option<String>,
    model: String,
}

/// The times of an answered request, in seconds.
pub struct Timeline {
    /// From the request to the first token.
    pub first: f64,
    /// Between parts of the answer; a part is a token, or several.
    pub gaps: Vec<f64>,
    /// From the request to the end of the answer.
    pub total: f64,
    /// The tokens that the server counted; `None` if it does not say.
    pub prompt_tokens: Option<u64>,
    pub tokens: u64,
}

impl Server {
    /// Connects to a server. `model` is the name in requests; by default the first of the server's list.
    ///
    /// # Errors
    /// The URL is invalid, or the server does not answer.
    pub fn new(url: &str, model: Option<&str>, key: Option<&str>) -> Result<Self> {
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(Error::usage(format!(
                "--serve {url}: expected http:// or https://"
            )));
        }
        let config = Agent::config_builder()
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(RESPONSE))
            .max_idle_connections(IDLE)
            .max_idle_connections_per_host(IDLE)
            .http_status_as_error(false)
            .build();
        let url = url.trim_end_matches('/');
        let (base, path) = match url.find("/v1") {
            Some(at) => url.split_at(at),
            None => (url, "/v1"),
        };
        let path = if path == "/v1" {
            "/v1/chat/completions"
        } else {
            path
        };
        let mut server = Server {
            agent: config.into(),
            url: format!("{base}{path}"),
            key: key.map(String::from),
            model: String::new(),
        };
        server.model = match model {
            Some(model) => model.into(),
            None => server.first_model(base)?,
        };
        Ok(server)
    }

    fn first_model(&self, base: &str) -> Result<String> {
        let url = format!("{base}/v1/models");
        let failed = |reason: String| Error::input(&url, reason);
        let mut request = self.agent.get(&url);
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let mut response = request.call().map_err(|e| failed(e.to_string()))?;
        let text = response.body_mut().read_to_string();
        let text = text.map_err(|e| failed(e.to_string()))?;
        let list: Value = serde_json::from_str(&text).unwrap_or_default();
        let first = list["data"][0]["id"].as_str().map(String::from);
        first.ok_or_else(|| failed(format!("expected a list of models, found {}", short(&text))))
    }

    /// The URL of requests.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The model's name in requests.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Whether requests have messages instead of a prompt.
    pub fn is_chat(&self) -> bool {
        self.url.ends_with("/chat/completions")
    }

    /// Sends a request and reads its answer. Times count from `begun`.
    ///
    /// # Errors
    /// A sentence about the connection, the status or the stream.
    pub fn send(&self, body: &Value, begun: Instant) -> Result<Timeline, String> {
        let mut body = body.clone();
        body["model"] = self.model.as_str().into();
        body["stream"] = true.into();
        body["stream_options"] = json!({ "include_usage": true });
        let mut request = self.agent.post(&self.url);
        request = request.header("content-type", "application/json");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let mut response = request.send(body.to_string()).map_err(|e| e.to_string())?;
        let status = response.status();
        if !status.is_success() {
            let text = response.body_mut().with_config().limit(ERROR);
            let text = text.read_to_string().unwrap_or_default();
            return Err(format!("status {}: {}", status.as_u16(), short(&text)));
        }
        let reader = response.into_body().into_with_config().limit(u64::MAX);
        read(BufReader::new(reader.reader()), begun)
    }
}

/// Reads a stream of server-sent events.
fn read(stream: impl BufRead, begun: Instant) -> Result<Timeline, String> {
    let (mut first, mut last, mut gaps) = (None, begun, Vec::new());
    let (mut usage, mut ended) = (Value::Null, false);
    for line in stream.lines() {
        let line = line.map_err(|e| e.to_string())?;
        let Some(data) = line.strip_prefix("data:") else {
            continue;
        };
        let now = Instant::now();
        if data.trim() == "[DONE]" {
            ended = true;
            break;
        }
        let mut chunk: Value =
            serde_json::from_str(data).map_err(|e| format!("the stream: {e}"))?;
        if !chunk["error"].is_null() {
            return Err(short(&chunk["error"].to_string()));
        }
        let choice = &chunk["choices"][0];
        ended |= !choice["finish_reason"].is_null();
        if has_text(choice) {
            match first {
                None => first = Some((now - begun).as_secs_f64()),
                Some(_) => gaps.push((now - last).as_secs_f64()),
            }
            last = now;
        }
        if chunk["usage"].is_object() {
            usage = chunk["usage"].take();
        }
    }
    if !ended {
        return Err("the stream ended before the answer".into());
    }
    let total = begun.elapsed().as_secs_f64();
    let counted = usage["completion_tokens"].as_u64();
    let parts = gaps.len() as u64 + u64::from(first.is_some());
    Ok(Timeline {
        first: first.unwrap_or(total),
        gaps,
        total,
        prompt_tokens: usage["prompt_tokens"].as_u64(),
        tokens: counted.unwrap_or(parts),
    })
}

/// Whether a part of an answer contains text, thoughts or calls.
fn has_text(choice: &Value) -> bool {
    let delta = &choice["delta"];
    let texts = [
        &choice["text"],
        &delta["content"],
        &delta["reasoning_content"],
        &delta["reasoning"],
    ];
    let has = |text: &&Value| text.as_str().is_some_and(|text| !text.is_empty());
    texts.iter().any(has) || !delta["tool_calls"].is_null()
}

/// Shortens a server's text, and makes it safe for a terminal.
fn short(text: &str) -> String {
    let message = serde_json::from_str(text).ok();
    let message =
        message.and_then(|value: Value| Some(value["error"]["message"].as_str()?.to_string()));
    let text: String = message
        .as_deref()
        .unwrap_or(text)
        .chars()
        .take(300)
        .collect();
    shown(text.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str) -> Result<Timeline, String> {
        read(text.as_bytes(), Instant::now())
    }

    #[test]
    fn parts_with_text_are_counted() {
        let stream = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n: waiting\n\n\
                      data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"reasoning_content\":\"b\"}}]}\n\n\
                      data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
        let without = answer(&format!("{stream}data: [DONE]\n\n")).expect("an answer");
        assert_eq!((without.tokens, without.gaps.len()), (2, 1));
        let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n";
        let with = answer(&(stream.to_string() + usage)).expect("an answer");
        assert_eq!((with.tokens, with.prompt_tokens), (3, Some(7)));
        assert!(with.first <= with.total);
    }

    #[test]
    fn streams_that_break_are_errors() {
        let part = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n";
        assert!(answer(part).is_err_and(|e| e.contains("ended before")));
        let error = "data: {\"error\":{\"message\":\"no room\"}}\n\n";
        assert!(answer(&(part.to_string() + error)).is_err_and(|e| e.contains("no room")));
        assert!(answer("data: {\n\n").is_err());
    }
}
