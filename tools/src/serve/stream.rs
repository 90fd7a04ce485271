//! A connection's stream. A write fails if the peer accepts nothing for [`PATIENCE`]. Reads of heads and bodies have timers in `http`.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use super::connections::Connection;
use super::http::PATIENCE;

/// A stream that records its peer's activity.
pub struct Stream {
    inner: TcpStream,
    connection: Arc<Connection>,
    /// Set while a write waits.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Stream {
    pub fn new(inner: TcpStream, connection: Arc<Connection>) -> Self {
        Stream {
            inner,
            connection,
            timer: None,
        }
    }

    /// Passes on the outcome of a write, or fails if it has waited too long.
    fn timed<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            if self.timer.take().is_some() {
                self.connection.set_waits(false);
            }
            self.connection.touch();
            return written;
        }
        self.connection.set_waits(true);
        self.connection.stall();
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(PATIENCE)));
        ready!(timer.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.inner).poll_read(context, buffer);
        match read.is_ready() {
            true => self.connection.touch(),
            false => self.connection.stall(),
        }
        read
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.timed(written, context)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, parts);
        self.timed(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
