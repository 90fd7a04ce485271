//! The log of requests: one line for each, without its contents.

use std::io::Write;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use serde::Serialize;

/// Lines that may wait to be written; further lines are dropped, so that a stuck reader does not stop the server.
const WAITING: usize = 1024;
/// Time to write the last lines when the server ends.
const LAST: Duration = Duration::from_secs(1);

/// The form of the lines.
#[derive(Clone, Copy, PartialEq, Debug, clap::ValueEnum)]
pub enum LogForm {
    /// Names and values.
    Text,
    /// A JSON object per line.
    Json,
}

/// The facts of a request that are logged. Times are in seconds.
#[derive(Serialize, Default)]
pub struct Line {
    /// The time at which the request arrived, as RFC 3339 in UTC.
    pub time: String,
    /// The client's address and port.
    pub client: String,
    /// The path of the request.
    pub interface: String,
    /// The model that answered.
    pub model: Option<String>,
    /// The status of the response; `None` if the client left before it.
    pub status: Option<u16>,
    /// Tokens of prompts that were read.
    pub read: usize,
    /// Tokens of prompts that were not read again.
    pub reused: usize,
    /// Tokens of answers.
    pub written: usize,
    /// Time in the queue.
    pub queue: Option<f64>,
    /// Time to the first token.
    pub first: Option<f64>,
    /// Time to the end.
    pub total: f64,
    /// The reason for the end.
    pub ending: &'static str,
}

impl Line {
    fn write(&self, form: LogForm) -> String {
        if form == LogForm::Json {
            return serde_json::to_string(self).unwrap_or_default();
        }
        let status = self
            .status
            .map_or_else(|| "-".into(), |status| status.to_string());
        let mut line = format!("{} {} {} {status}", self.time, self.client, self.interface);
        if let Some(model) = &self.model {
            line += &format!(
                " model={} read={} reused={} written={}",
                quoted(model),
                self.read,
                self.reused,
                self.written
            );
        }
        for (name, time) in [("queue", self.queue), ("first", self.first)] {
            if let Some(time) = time {
                line += &format!(" {name}={time:.4}");
            }
        }
        line + &format!(" total={:.4} {}", self.total, self.ending)
    }
}

/// Quotes a name that contains spaces or control characters.
fn quoted(name: &str) -> String {
    let is_plain = name.chars().all(|c| c.is_ascii_graphic() && c != '"');
    if is_plain {
        name.into()
    } else {
        format!("{name:?}")
    }
}

/// Sends lines to the thread that writes them.
#[derive(Clone)]
pub struct Log {
    form: LogForm,
    lines: SyncSender<String>,
}

/// Waits for the last lines when it is dropped.
pub struct LogThread(Receiver<()>);

impl Log {
    /// Starts a thread that writes lines to `to`.
    ///
    /// # Errors
    /// The system starts no thread.
    pub fn start(
        form: LogForm,
        mut to: impl Write + Send + 'static,
    ) -> std::io::Result<(Self, LogThread)> {
        let (lines, waiting) = sync_channel::<String>(WAITING);
        let (end, ended) = sync_channel::<()>(0);
        let write = move || {
            let _end = end;
            for line in waiting {
                if writeln!(to, "{line}").and_then(|()| to.flush()).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new()
            .name("log".into())
            .spawn(write)?;
        Ok((Log { form, lines }, LogThread(ended)))
    }

    /// Writes a line. Returns false if it was dropped.
    pub fn write(&self, line: &Line) -> bool {
        self.lines.try_send(line.write(self.form)).is_ok()
    }
}

impl Drop for LogThread {
    fn drop(&mut self) {
        // The thread's end disconnects the channel, once all `Log`s are gone.
        let _ = self.0.recv_timeout(LAST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> Line {
        Line {
            time: "2026-11-28T10:00:00Z".into(),
            client: "127.0.0.1:5000".into(),
            interface: "/v1/completions".into(),
            model: Some("a model\n".into()),
            status: Some(200),
            read: 3,
            reused: 20,
            written: 7,
            queue: Some(0.0),
            first: Some(0.25),
            total: 1.5,
            ending: "length",
        }
    }

    #[test]
    fn a_request_is_one_line() {
        assert_eq!(
            line().write(LogForm::Text),
            "2026-11-28T10:00:00Z 127.0.0.1:5000 /v1/completions 200 model=\"a model\\n\" read=3 reused=20 written=7 \
             queue=0.0000 first=0.2500 total=1.5000 length"
        );
        let json = line().write(LogForm::Json);
        let read: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(
            (&read["first"], &read["reused"]),
            (&0.25.into(), &20.into())
        );
        assert!(!json.contains('\n'));
    }

    /// A writer that never returns, as a full pipe.
    struct Stuck;

    impl Write for Stuck {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            loop {
                std::thread::park();
            }
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_stuck_reader_costs_lines_and_no_time() {
        let (log, thread) = Log::start(LogForm::Text, Stuck).expect("a thread");
        let kept = (0..2 * WAITING).filter(|_| log.write(&line())).count();
        assert!((WAITING..=WAITING + 1).contains(&kept), "{kept}");
        drop((log, thread));
    }
}
