//! A server process, and requests to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// A server, which ends with this value.
pub struct Server {
    child: Child,
    address: String,
}

impl Server {
    /// Starts `waterline serve` with a free port and waits for its address.
    pub fn start(command: &mut Command) -> Self {
        let command = command.args(["--port", "0"]).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let mut lines = lines.map(|line| line.expect("text"));
        let address = lines.find_map(|line| {
            let (_, address) = line.split_once(" at http://")?;
            Some(address.trim().to_string())
        });
        // The pipe is read until the server ends.
        std::thread::spawn(move || lines.for_each(drop));
        Server {
            child,
            address: address.expect("an address"),
        }
    }

    /// Posts a request and returns the body of the answer.
    pub fn post(&self, path: &str, body: &Value) -> String {
        let mut stream = TcpStream::connect(&self.address).expect("a server");
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream
            .write_all((head + &body).as_bytes())
            .expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        body.into()
    }

    /// Posts a request and returns the answer.
    pub fn ask(&self, path: &str, body: &Value) -> Value {
        let answer = self.post(path, body);
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }
}
