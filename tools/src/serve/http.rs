//! HTTP/1.1: connections, bodies and refusals. Other modules answer the requests.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::channel::{Channel, Sender};
use http_body_util::{BodyExt, Either, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::timeout;

use super::App;
use super::metrics::Count;

/// Maximum concurrent connections.
const MOST_CONNECTIONS: usize = 1024;
/// Time limit for a client's headers, for its body, and for accepting each part of an answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Parts of an answer that may wait for a slow reader, in addition to the socket's buffer.
const PARTS: usize = 16;

/// A response body: complete, or streamed in parts.
pub type Body = Either<Full<Bytes>, Channel<Bytes>>;

/// The sending end of a streamed body of server-sent events.
pub struct Events {
    parts: Sender<Bytes>,
    /// Notified to end the connection of a client that stopped reading.
    stuck: Arc<Notify>,
}

impl Events {
    /// Creates the sender of events, and the response that carries them.
    pub fn new(stuck: &Arc<Notify>) -> (Self, Response<Body>) {
        let (parts, body) = Channel::new(PARTS);
        let mut response = Response::new(Either::Right(body));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        let stuck = Arc::clone(stuck);
        (Events { parts, stuck }, response)
    }

    /// Sends an event, named by its `type` if it has one. Returns false if the client no longer reads.
    pub async fn send(&mut self, event: &Value) -> bool {
        let name = event["type"].as_str();
        let name = name.map_or_else(String::new, |name| format!("event: {name}\n"));
        self.send_text(format!("{name}data: {event}\n\n")).await
    }

    /// Sends an event's text. Returns false if the client no longer reads.
    pub async fn send_text(&mut self, text: impl Into<Bytes>) -> bool {
        match timeout(PATIENCE, self.parts.send_data(text.into())).await {
            Ok(sent) => sent.is_ok(),
            Err(_) => {
                self.stuck.notify_one();
                false
            }
        }
    }
}

/// A refused request: the status and the reason.
#[derive(Debug)]
pub struct Refusal {
    pub status: StatusCode,
    pub message: String,
}

impl Refusal {
    /// A refusal of an invalid request, with status 400.
    pub fn bad(message: impl Into<String>) -> Self {
        Refusal::new(StatusCode::BAD_REQUEST, message)
    }

    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let message = message.into();
        Refusal { status, message }
    }

    /// The kind of error, as OpenAI's and Anthropic's APIs name it.
    pub fn kind(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            503 => "overloaded_error",
            500 => "api_error",
            _ => "invalid_request_error",
        }
    }

    /// The response. OpenAI's clients read `error`; Anthropic's clients read `type`.
    pub fn response(&self) -> Response<Body> {
        let mut response = json_response(&self.value());
        *response.status_mut() = self.status;
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            let headers = response.headers_mut();
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }

    pub fn value(&self) -> Value {
        json!({
            "type": "error",
            "error": {
                "message": self.message,
                "type": self.kind(),
                "code": self.status.as_u16(),
                "param": null,
            },
        })
    }
}

impl From<waterline::Error> for Refusal {
    fn from(error: waterline::Error) -> Self {
        use waterline::Error as Library;
        let status = match error {
            Library::ContextFull { .. }
            | Library::Template { .. }
            | Library::Invalid { .. }
            | Library::Tokenizer { .. } => StatusCode::BAD_REQUEST,
            // The time limit cancelled the request. If the client left instead, this response is never sent.
            Library::Cancelled { .. } => StatusCode::REQUEST_TIMEOUT,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Refusal::new(status, error.to_string())
    }
}

/// Returns a response with a JSON value.
pub fn json_response(value: &Value) -> Response<Body> {
    text_response("application/json", value.to_string())
}

/// Returns a response with a text.
pub fn text_response(kind: &'static str, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Either::Left(Full::new(text.into())));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Reads the body of a request, at most `most` bytes.
pub async fn read_body(body: Incoming, most: usize) -> Result<Bytes, Refusal> {
    let read = timeout(PATIENCE, Limited::new(body, most).collect());
    match read.await {
        Err(_) => Err(Refusal::new(
            StatusCode::REQUEST_TIMEOUT,
            "the request body was not received in time",
        )),
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Refusal::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body has more than {most} bytes (--max-body)"),
        )),
        Ok(Err(error)) => Err(Refusal::bad(format!("the body cannot be read: {error}"))),
    }
}

/// Serves until `stop` becomes true. Running requests then have `grace` to finish.
pub async fn serve(
    listener: TcpListener,
    app: Arc<App>,
    mut stop: watch::Receiver<bool>,
    grace: Duration,
) {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            break;
        };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        match accepted {
            Ok((stream, _)) => {
                let (app, stop) = (Arc::clone(&app), stop.clone());
                tokio::spawn(async move {
                    connection(stream, app, stop).await;
                    drop(place);
                });
            }
            // Neither too many open files nor a client that left ends the server.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    drop(listener);
    let all = MOST_CONNECTIONS as u32;
    let _ = timeout(grace, places.acquire_many(all)).await;
}

async fn connection(stream: TcpStream, app: Arc<App>, mut stop: watch::Receiver<bool>) {
    // Tokens are sent one at a time and must not be delayed.
    let _ = stream.set_nodelay(true);
    let stuck = Arc::new(Notify::new());
    let service = service_fn(|request: Request<Incoming>| {
        let (app, stuck) = (Arc::clone(&app), Arc::clone(&stuck));
        async move {
            let response = app.answer(request, &stuck).await;
            app.metrics.add(Count::Requests, 1);
            let is_refused = response.status().as_u16() >= 400;
            app.metrics.add(Count::Refused, usize::from(is_refused));
            Ok::<_, Infallible>(response)
        }
    });
    let mut connection = pin!(
        hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(PATIENCE)
            .serve_connection(TokioIo::new(stream), service)
    );
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = stuck.notified() => return,
        _ = stop.wait_for(|stop| *stop) => connection.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        _ = connection => {}
        _ = stuck.notified() => {}
    }
}
