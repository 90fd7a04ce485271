//! The routes and their access control.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS, ALLOW, AUTHORIZATION,
    CONTENT_SECURITY_POLICY, HOST, HeaderValue, ORIGIN, VARY,
};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use serde_json::json;
use waterline_quant::ask_room;

use super::exchange::Exchange;
use super::fields::Face;
use super::http::{Body, Received, busy, json_response, text_response};
use super::models::unknown;
use super::refusal::Refusal;
use super::{App, Server};
use super::{anthropic, completions, embeddings, native, ollama, openai, responses};

/// The paths and their methods. Each is also found below `/v1`, and HEAD wherever GET is.
const ROUTES: [(&str, Method); 26] = [
    ("/", Method::GET),
    ("/health", Method::GET),
    ("/metrics", Method::GET),
    ("/models", Method::GET),
    ("/chat/completions", Method::POST),
    ("/completions", Method::POST),
    ("/responses", Method::POST),
    ("/messages", Method::POST),
    ("/messages/count_tokens", Method::POST),
    ("/embeddings", Method::POST),
    ("/api/chat", Method::POST),
    ("/api/generate", Method::POST),
    ("/api/embed", Method::POST),
    ("/api/embeddings", Method::POST),
    ("/api/tags", Method::GET),
    ("/api/ps", Method::GET),
    ("/api/show", Method::POST),
    ("/api/version", Method::GET),
    ("/completion", Method::POST),
    ("/infill", Method::POST),
    ("/apply-template", Method::POST),
    ("/props", Method::GET),
    ("/slots", Method::GET),
    ("/tokenizer_info", Method::GET),
    ("/tokenize", Method::POST),
    ("/detokenize", Method::POST),
];

/// Memory in bytes that the values of a byte of a body need.
const MEMORY_OF_BYTE: usize = 8;
/// The path without `/v1` and a slash at its end.
fn short(path: &str) -> &str {
    let path = path.strip_suffix('/').unwrap_or(path);
    let path = match path.strip_prefix("/v1") {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => rest,
        _ => path,
    };
    if path.is_empty() { "/" } else { path }
}

impl Server {
    /// Responds to a request.
    pub async fn answer(
        self: &Arc<Self>,
        request: Request<Incoming>,
        exchange: &Arc<Exchange>,
    ) -> Response<Body> {
        let full = request.uri().path().to_string();
        let path = short(&full);
        let face = match path {
            _ if path.starts_with("/messages") => Face::Anthropic,
            _ if path.starts_with("/api/") => Face::Ollama,
            _ => Face::Chat,
        };
        let origin = match self.check_place(request.headers()) {
            Ok(origin) => origin,
            Err(refusal) => return refusal.response(face),
        };
        let mut response = if request.method() == Method::OPTIONS && origin.is_some() {
            preflight(request.headers())
        } else {
            let response = self.route(path, request, exchange).await;
            response.unwrap_or_else(|refusal| refusal.response(face))
        };
        if let Some(origin) = origin {
            let headers = response.headers_mut();
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(VARY, HeaderValue::from_static("Origin"));
        }
        response
    }

    async fn route(
        self: &Arc<Self>,
        path: &str,
        request: Request<Incoming>,
        exchange: &Arc<Exchange>,
    ) -> Result<Response<Body>, Refusal> {
        // `/models/NAME` returns only that model's card.
        let of_model = path.strip_prefix("/models/");
        let listed = of_model.map_or(path, |_| "/models");
        let found = ROUTES.iter().find(|(path, _)| *path == listed);
        let Some((path, method)) = found else {
            let reason = format!("{}: not found", request.uri().path());
            return Err(Refusal::new(StatusCode::NOT_FOUND, reason));
        };
        if !["/", "/health"].contains(path) {
            self.check_key(request.headers())?;
        }
        let is_head = *method == Method::GET && request.method() == Method::HEAD;
        if request.method() != method && !is_head {
            let reason = format!("{}: expected {method}", request.uri().path());
            let refusal = Refusal::new(StatusCode::METHOD_NOT_ALLOWED, reason);
            let mut response = refusal.response(Face::Chat);
            let allowed = HeaderValue::from_str(method.as_str());
            response
                .headers_mut()
                .extend(allowed.map(|value| (ALLOW, value)));
            return Ok(response);
        }
        match *path {
            "/" => return Ok(page()),
            "/health" if self.models.are_well() => {
                return Ok(json_response(&json!({ "status": "ok" })));
            }
            "/health" => return Err(busy("the model's thread starts again")),
            "/metrics" => {
                let page = self.common.metrics.page(&self.models.gauges());
                return Ok(text_response("text/plain; version=0.0.4", page));
            }
            _ => {}
        }
        let mut query = request.uri().query().unwrap_or("").split('&');
        let name = of_model.or_else(|| query.find_map(|pair| pair.strip_prefix("model=")));
        let name = name.map(decoded);
        let body = match *method == Method::POST {
            true => self.read_body(request).await?,
            false => Received::default(),
        };
        let (server, path, exchange) = (Arc::clone(self), *path, Arc::clone(exchange));
        let bytes = body.bytes.len();
        let work = async move { server.work(path, name, &body, &exchange).await };
        self.lanes.run(bytes, work).await
    }

    /// Responds to a request, on the lane of its body's size.
    async fn work(
        &self,
        path: &str,
        name: Option<String>,
        body: &Received,
        exchange: &Arc<Exchange>,
    ) -> Result<Response<Body>, Refusal> {
        let models = &self.models;
        match path {
            "/models" => self.list(name.as_deref()),
            "/api/tags" => Ok(json_response(&ollama::tags(models.list()?))),
            "/api/ps" => Ok(json_response(&ollama::running(models.list()?))),
            "/api/version" => Ok(json_response(&json!({ "version": ollama::VERSION }))),
            _ => {
                let app = models.find(name, &body.bytes).await?;
                app.respond_to(path, &body.bytes, exchange).await
            }
        }
    }

    /// Responds with the models, or with the one of this name.
    fn list(&self, name: Option<&str>) -> Result<Response<Body>, Refusal> {
        let cards = self.models.cards()?;
        let Some(name) = name else {
            return Ok(json_response(&json!({ "object": "list", "data": cards })));
        };
        let found = cards.iter().find(|card| card["id"] == name);
        found.map(json_response).ok_or_else(|| {
            unknown(
                Some(name),
                cards.iter().filter_map(|card| card["id"].as_str()),
            )
        })
    }

    /// Rejects requests from web pages of other servers, which a browser on this machine may show, unless `--allow-origin` names
    /// them. Returns the origin of such a page.
    fn check_place(&self, headers: &HeaderMap) -> Result<Option<HeaderValue>, Refusal> {
        let text = |value: Option<&HeaderValue>| {
            value.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        let host = text(headers.get(HOST));
        let is_own = |name: &String| {
            let name = match name.rsplit_once(':') {
                Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
                _ => name,
            };
            ["localhost", "127.0.0.1", "[::1]"].contains(&name)
                || name == self.address.ip().to_string()
                || self
                    .common
                    .args
                    .allowed_hosts
                    .iter()
                    .any(|allowed| allowed == name)
        };
        let refuse = |reason: &str| Err(Refusal::new(StatusCode::FORBIDDEN, reason));
        // A page whose own name was pointed at this machine sends that name. No page can have an address as its name.
        let from_page = headers.contains_key(ORIGIN) || headers.contains_key("sec-fetch-site");
        let is_checked = self.address.ip().is_loopback()
            || (from_page && !host.as_deref().is_some_and(is_address));
        if is_checked && !host.as_ref().is_none_or(is_own) {
            return refuse("Host: expected this machine's name, or one of --allow-host");
        }
        let Some(value) = headers.get(ORIGIN) else {
            return Ok(None);
        };
        let origin = text(Some(value)).unwrap_or_default();
        if origin.split_once("://").map(|(_, page)| page) == host.as_deref() {
            return Ok(None);
        }
        let is_allowed = |allowed: &String| allowed == "*" || *allowed == origin;
        if self.common.args.allowed_origins.iter().any(is_allowed) {
            return Ok(Some(value.clone()));
        }
        refuse(
            "Origin: pages of other servers may use this server only if --allow-origin names them",
        )
    }

    fn check_key(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let Some(key) = &self.common.args.api_key else {
            return Ok(());
        };
        let bearer = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        let bearer = bearer.and_then(|value| match value.split_at_checked(7) {
            Some((scheme, key)) if scheme.eq_ignore_ascii_case(b"bearer ") => Some(key),
            _ => None,
        });
        let given = bearer.or(headers.get("x-api-key").map(HeaderValue::as_bytes));
        if given.is_some_and(|given| are_equal(given, key.as_bytes())) {
            return Ok(());
        }
        Err(Refusal::new(
            StatusCode::UNAUTHORIZED,
            "the key is missing or wrong",
        ))
    }
}

impl App {
    /// Responds to a request for this model.
    async fn respond_to(
        self: &Arc<Self>,
        path: &str,
        body: &[u8],
        exchange: &Arc<Exchange>,
    ) -> Result<Response<Body>, Refusal> {
        let refused = |_| busy("the system refuses memory for the request");
        ask_room(body.len().saturating_mul(MEMORY_OF_BYTE)).map_err(refused)?;
        match path {
            "/chat/completions" => openai::chat(self, body, exchange).await,
            "/completions" => completions::complete(self, body, exchange).await,
            "/responses" => responses::respond(self, body, exchange).await,
            "/messages" => anthropic::answer(self, body, exchange).await,
            "/messages/count_tokens" => anthropic::count(self, body).await,
            "/embeddings" => embeddings::answer(self, body, exchange).await,
            "/api/embed" => ollama::embed(self, body, exchange).await,
            "/api/embeddings" => ollama::embed_one(self, body, exchange).await,
            "/api/chat" => ollama::chat(self, body, exchange).await,
            "/api/generate" => ollama::generate(self, body, exchange).await,
            "/api/show" => Ok(json_response(&ollama::show(self))),
            "/completion" => native::complete(self, body, exchange).await,
            "/infill" => native::infill(self, body, exchange).await,
            "/apply-template" => native::apply_template(self, body).await,
            "/tokenize" => completions::tokenize(self, body).await,
            "/detokenize" => completions::detokenize(self, body),
            "/props" => Ok(json_response(&native::props(self))),
            "/slots" => Ok(json_response(&native::slots(self))),
            _ => Ok(json_response(&self.prompter.info())),
        }
    }
}

/// Whether a Host header is an IP address, with or without a port.
fn is_address(host: &str) -> bool {
    host.parse::<std::net::SocketAddr>().is_ok()
        || (host.trim_start_matches('[').trim_end_matches(']'))
            .parse::<std::net::IpAddr>()
            .is_ok()
}

/// Allows a page of another origin to send the request that its browser asks about.
fn preflight(headers: &HeaderMap) -> Response<Body> {
    const ASKS_PRIVATE: &str = "access-control-request-private-network";
    const ALLOWS_PRIVATE: &str = "access-control-allow-private-network";
    let mut response = text_response("text/plain", "");
    *response.status_mut() = StatusCode::NO_CONTENT;
    let allowed = response.headers_mut();
    let methods = HeaderValue::from_static("GET, HEAD, POST");
    allowed.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
    allowed.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    if let Some(names) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
        allowed.insert(ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
    }
    if headers.contains_key(ASKS_PRIVATE) {
        allowed.insert(ALLOWS_PRIVATE, HeaderValue::from_static("true"));
    }
    response
}

/// A part of a path without percent signs.
fn decoded(part: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = part.as_bytes();
    while let [first, after @ ..] = rest {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.map(|hex| u8::from_str_radix(hex, 16)) {
            Some(Ok(byte)) if *first == b'%' => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The chat page, which loads nothing from other servers.
fn page() -> Response<Body> {
    const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
                          form-action 'none'; frame-ancestors 'none'; base-uri 'none'";
    let mut response = text_response("text/html; charset=utf-8", include_str!("page.html"));
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    response
}

/// Compares keys in a time that does not depend on where they differ.
fn are_equal(one: &[u8], other: &[u8]) -> bool {
    let differences = one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b));
    one.len() == other.len() && differences == 0
}
