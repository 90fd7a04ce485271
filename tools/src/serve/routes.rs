//! The routes and their access control.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{ALLOW, AUTHORIZATION, CONTENT_SECURITY_POLICY, HOST, HeaderValue, ORIGIN};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use waterline_quant::ask_room;

use super::App;
use super::exchange::Exchange;
use super::http::{Body, Received, Refusal, busy, json_response, text_response};
use super::{anthropic, completions, openai};

/// The paths and their methods.
const ROUTES: [(&str, Method); 12] = [
    ("/", Method::GET),
    ("/health", Method::GET),
    ("/metrics", Method::GET),
    ("/v1/models", Method::GET),
    ("/v1/chat/completions", Method::POST),
    ("/v1/completions", Method::POST),
    ("/v1/messages", Method::POST),
    ("/v1/messages/count_tokens", Method::POST),
    ("/v1/embeddings", Method::POST),
    ("/tokenizer_info", Method::GET),
    ("/tokenize", Method::POST),
    ("/detokenize", Method::POST),
];

/// Memory in bytes that the values of a byte of a body need.
const MEMORY_OF_BYTE: usize = 8;

impl App {
    /// Responds to a request.
    pub async fn answer(
        self: &Arc<Self>,
        request: Request<Incoming>,
        exchange: &Arc<Exchange>,
    ) -> Response<Body> {
        let response = self.route(request, exchange).await;
        response.unwrap_or_else(|refusal| refusal.response())
    }

    async fn route(
        self: &Arc<Self>,
        request: Request<Incoming>,
        exchange: &Arc<Exchange>,
    ) -> Result<Response<Body>, Refusal> {
        let full = request.uri().path().to_string();
        self.check_place(request.headers())?;
        // `/v1/models/NAME` returns only that model's card.
        let of_model = full.strip_prefix("/v1/models/");
        let listed = of_model.map_or(&*full, |_| "/v1/models");
        let found = ROUTES.iter().find(|(path, _)| *path == listed);
        let Some((path, method)) = found else {
            let reason = format!("{full}: not found");
            return Err(Refusal::new(StatusCode::NOT_FOUND, reason));
        };
        if !["/", "/health"].contains(path) {
            self.check_key(request.headers())?;
        }
        if request.method() != method {
            let reason = format!("{full}: expected {method}");
            let refusal = Refusal::new(StatusCode::METHOD_NOT_ALLOWED, reason);
            let mut response = refusal.response();
            let allowed = HeaderValue::from_str(method.as_str());
            response
                .headers_mut()
                .extend(allowed.map(|value| (ALLOW, value)));
            return Ok(response);
        }
        let body = match *method == Method::POST {
            true => self.read_body(request).await?,
            false => return self.show(path, of_model, &full),
        };
        let (app, path, exchange) = (Arc::clone(self), *path, Arc::clone(exchange));
        let bytes = body.bytes.len();
        let work = async move { app.post(path, &body, &exchange).await };
        self.lanes.run(bytes, work).await
    }

    /// Responds to a GET request.
    fn show(
        &self,
        path: &str,
        of_model: Option<&str>,
        full: &str,
    ) -> Result<Response<Body>, Refusal> {
        match path {
            "/" => Ok(page()),
            "/health" if self.health.is_well() => Ok(json_response(&json!({ "status": "ok" }))),
            "/health" => Err(busy("the model's thread starts again")),
            "/metrics" => {
                let page = self.metrics.page(&self.gauges());
                Ok(text_response("text/plain; version=0.0.4", page))
            }
            "/v1/models" => match of_model {
                None => Ok(json_response(
                    &json!({ "object": "list", "data": [self.card()] }),
                )),
                Some(name) if name == self.name => Ok(json_response(&self.card())),
                Some(_) => Err(Refusal::new(
                    StatusCode::NOT_FOUND,
                    format!("{full}: the model is {:?}", self.name),
                )),
            },
            _ => Ok(json_response(&self.prompter.info())),
        }
    }

    /// Responds to a POST request, on the lane of its body's size.
    async fn post(
        self: &Arc<Self>,
        path: &str,
        body: &Received,
        exchange: &Arc<Exchange>,
    ) -> Result<Response<Body>, Refusal> {
        let body = &body.bytes;
        let refused = |_| busy("the system refuses memory for the request");
        ask_room(body.len().saturating_mul(MEMORY_OF_BYTE)).map_err(refused)?;
        match path {
            "/v1/chat/completions" => openai::chat(self, body, exchange).await,
            "/v1/completions" => completions::complete(self, body, exchange).await,
            "/v1/messages" => anthropic::answer(self, body, exchange).await,
            "/v1/messages/count_tokens" => anthropic::count(self, body).await,
            "/tokenize" => completions::tokenize(self, body).await,
            "/detokenize" => completions::detokenize(self, body),
            _ => Err(Refusal::bad(
                "this model generates text and does not compute embeddings",
            )),
        }
    }

    /// The model's entry in lists of models.
    fn card(&self) -> Value {
        json!({
            "id": self.name,
            "object": "model",
            "created": self.started,
            "owned_by": "waterline",
            "max_model_len": self.context,
            "state_bytes": self.state_bytes,
            "tool_format": self.format.map(|format| format.name),
        })
    }

    /// Rejects requests from web pages of other servers, which a browser on this machine may show.
    fn check_place(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let text = |name| {
            headers
                .get(name)
                .map(|value: &HeaderValue| value.to_str().unwrap_or(""))
        };
        let host = text(HOST);
        let is_own = |name: &str| {
            let name = match name.rsplit_once(':') {
                Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
                _ => name,
            };
            ["localhost", "127.0.0.1", "[::1]"].contains(&name)
                || name == self.address.ip().to_string()
                || self.allowed_hosts.iter().any(|allowed| allowed == name)
        };
        let refuse = |reason: &str| Err(Refusal::new(StatusCode::FORBIDDEN, reason));
        // A page whose own name was pointed at this machine sends that name. No page can have an address as its name.
        let from_page = headers.contains_key(ORIGIN) || headers.contains_key("sec-fetch-site");
        let is_checked =
            self.address.ip().is_loopback() || (from_page && !host.is_some_and(is_address));
        if is_checked && !host.is_none_or(is_own) {
            return refuse("Host: expected this machine's name, or one of --allow-host");
        }
        let of_page = text(ORIGIN).map(|origin| origin.split_once("://").map(|(_, host)| host));
        match of_page {
            Some(page) if page != host => {
                refuse("Origin: pages of other servers may not use this server")
            }
            _ => Ok(()),
        }
    }

    fn check_key(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let Some(key) = &self.api_key else {
            return Ok(());
        };
        let bearer = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        let bearer = bearer.and_then(|value| value.strip_prefix(b"Bearer "));
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

/// Whether a Host header is an IP address, with or without a port.
fn is_address(host: &str) -> bool {
    host.parse::<std::net::SocketAddr>().is_ok()
        || (host.trim_start_matches('[').trim_end_matches(']'))
            .parse::<std::net::IpAddr>()
            .is_ok()
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
