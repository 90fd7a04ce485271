//! HTTP/1.1: connections and bodies. Other modules answer the requests.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::channel::{Channel, Sender};
use http_body_util::{BodyExt, Either, Full, LengthLimitError, Limited};
use hyper::body::{Body as _, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc, watch};
use tokio::time::timeout;

use super::Server;
use super::connections::{Connection, Open};
use super::cost::body_permits;
use super::exchange::Exchange;
use super::lanes::SHORT;
use super::metrics::Count;
use super::refusal::Refusal;
use super::stream::Stream;

/// Time limit for a client's headers, for its body, and for accepting the next bytes of an answer.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Parts of an answer that may wait for a slow reader, in addition to the socket's buffer.
const PARTS: usize = 16;

/// A response body: complete, or streamed in parts.
pub type Body = Either<Full<Bytes>, Channel<Bytes>>;

/// The sending end of a streamed body of server-sent events, or of lines of JSON.
pub struct Events {
    are_lines: bool,
    parts: Sender<Bytes>,
    exchange: Arc<Exchange>,
}

impl Events {
    /// Creates the sender of events, and the response that carries them.
    pub fn new(are_lines: bool, exchange: &Arc<Exchange>) -> (Self, Response<Body>) {
        let (parts, body) = Channel::new(PARTS);
        let mut response = Response::new(Either::Right(body));
        let headers = response.headers_mut();
        let kind = match are_lines {
            true => "application/x-ndjson",
            false => "text/event-stream",
        };
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        let events = Events {
            are_lines,
            parts,
            exchange: Arc::clone(exchange),
        };
        (events, response)
    }

    /// Sends an event, named by its `type` if it has one. Returns false if the client no longer reads.
    pub async fn send(&mut self, event: &Value) -> bool {
        if self.are_lines {
            return self.send_text(format!("{event}\n")).await;
        }
        let name = event["type"].as_str();
        let name = name.map_or_else(String::new, |name| format!("event: {name}\n"));
        self.send_text(format!("{name}data: {event}\n\n")).await
    }

    /// Sends a comment, which clients ignore; lines of JSON have none. Returns false if the client no longer reads.
    pub async fn send_comment(&mut self) -> bool {
        self.are_lines || self.send_text(":\n\n").await
    }

    /// Sends an event's text. Returns false if the client no longer reads.
    pub async fn send_text(&mut self, text: impl Into<Bytes>) -> bool {
        match timeout(PATIENCE, self.parts.send_data(text.into())).await {
            Ok(sent) => sent.is_ok(),
            Err(_) => {
                self.exchange.stuck.notify_one();
                false
            }
        }
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

/// A body, with its share of the memory for long bodies.
#[derive(Default)]
pub struct Received {
    pub bytes: Vec<u8>,
    _share: Option<OwnedSemaphorePermit>,
}

impl Server {
    /// Reads the body of a request. A long one waits until there is memory for it.
    pub async fn read_body(&self, request: Request<Incoming>) -> Result<Received, Refusal> {
        let connection = request.extensions().get::<Arc<Connection>>().cloned();
        let waits = |waits| connection.iter().for_each(|c| c.set_waits(waits));
        waits(true);
        let read = timeout(PATIENCE, self.receive(request.into_body())).await;
        waits(false);
        read.unwrap_or_else(|_| {
            let reason = "the request body was not received in time";
            Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, reason))
        })
    }

    async fn receive(&self, body: Incoming) -> Result<Received, Refusal> {
        let most = self.common.args.limits.body;
        let too_large = || {
            let reason = format!("the body has more than {most} bytes (--max-body)");
            Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, reason)
        };
        // A body of unknown length may be as long as is allowed.
        let claimed = body.size_hint().exact();
        let expected = claimed.map_or(most, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        if claimed.is_some() && expected > most {
            return Err(too_large());
        }
        let (mut bytes, mut share) = (Vec::new(), None);
        let mut body = pin!(Limited::new(body, most));
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| match error.is::<LengthLimitError>() {
                true => too_large(),
                false => Refusal::bad(format!("the body cannot be read: {error}")),
            })?;
            let Ok(part) = frame.into_data() else {
                continue;
            };
            if share.is_none() && bytes.len() + part.len() > SHORT {
                share = Some(self.share(body_permits(expected, most)).await?);
                let more = expected.saturating_sub(bytes.len());
                let refused = |_| busy("the system refuses memory for the body");
                bytes.try_reserve_exact(more).map_err(refused)?;
            }
            bytes.extend_from_slice(&part);
        }
        Ok(Received {
            bytes,
            _share: share,
        })
    }

    /// Waits for a share of the memory for long bodies.
    async fn share(&self, permits: u32) -> Result<OwnedSemaphorePermit, Refusal> {
        let share = Arc::clone(&self.bodies).acquire_many_owned(permits);
        let full = || busy("too many long requests");
        match timeout(PATIENCE / 2, share).await {
            Ok(Ok(share)) => Ok(share),
            _ => Err(full()),
        }
    }
}

/// A refusal of a request that can be sent again later.
pub fn busy(reason: &str) -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, reason)
}

/// The response to a connection for which there is no room.
const NO_ROOM: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// Serves until `stop` becomes true. Running requests then have `grace` to finish.
pub async fn serve(
    listener: TcpListener,
    server: Arc<Server>,
    mut stop: watch::Receiver<bool>,
    grace: Duration,
) {
    // Every connection holds a sender; the receiver notices when the last one has ended.
    let (open, mut ended) = mpsc::channel::<()>(1);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        match accepted {
            Ok((stream, client)) => {
                let Some(connection) = server.connections.admit(client.ip()) else {
                    let _ = stream.try_write(NO_ROOM);
                    continue;
                };
                let (server, stop, open) = (Arc::clone(&server), stop.clone(), open.clone());
                tokio::spawn(async move {
                    serve_connection((stream, client), &connection, &server, stop).await;
                    server.connections.remove(&connection);
                    drop(open);
                });
            }
            // Neither too many open files nor a client that left ends the server.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    drop((listener, open));
    let _ = timeout(grace, ended.recv()).await;
}

async fn serve_connection(
    (stream, client): (TcpStream, SocketAddr),
    connection: &Arc<Connection>,
    server: &Arc<Server>,
    mut stop: watch::Receiver<bool>,
) {
    // Tokens are sent one at a time and must not be delayed.
    let _ = stream.set_nodelay(true);
    let stuck = Arc::new(Notify::new());
    let service = service_fn(|mut request: Request<Incoming>| {
        let exchange = Arc::new(server.exchange(client, &request, &stuck));
        let server = Arc::clone(server);
        let open = connection.request();
        request.extensions_mut().insert(Arc::clone(connection));
        async move {
            let response = server.answer(request, &exchange).await;
            exchange.responds(response.status());
            let metrics = &server.common.metrics;
            metrics.add(Count::Requests, 1);
            let is_refused = response.status().as_u16() >= 400;
            metrics.add(Count::Refused, usize::from(is_refused));
            Ok::<_, Infallible>(response.map(|body| Answered { body, _open: open }))
        }
    });
    let stream = TokioIo::new(Stream::new(stream, Arc::clone(connection)));
    let mut serving = pin!(
        hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(PATIENCE)
            .serve_connection(stream, service)
    );
    tokio::select! {
        _ = serving.as_mut() => return,
        _ = stuck.notified() => return,
        _ = connection.end.notified() => return,
        _ = stop.wait_for(|stop| *stop) => serving.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        _ = serving => {}
        _ = stuck.notified() => {}
        _ = connection.end.notified() => {}
    }
}

/// The body of a response, whose request is open until the body is sent.
struct Answered {
    body: Body,
    _open: Open,
}

impl hyper::body::Body for Answered {
    type Data = Bytes;
    type Error = <Body as hyper::body::Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
