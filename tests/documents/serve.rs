//! Runs a server command from a document: the server starts, answers and is ended.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// Starts the server, waits for its address, requests its health and ends it.
pub fn answers(command: &mut Command) -> Result<(), String> {
    let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
    let found = health(&mut child);
    child.kill().expect("it can be ended");
    child.wait().expect("it ends");
    match found {
        Ok(answer) if answer.starts_with("HTTP/1.1 200") => Ok(()),
        Ok(answer) => Err(answer),
        Err(error) => Err(error.to_string()),
    }
}

fn health(child: &mut Child) -> std::io::Result<String> {
    let mut said = String::new();
    for line in BufReader::new(child.stderr.take().expect("a pipe")).lines() {
        let line = line?;
        if let Some((_, address)) = line.split_once(" at http://") {
            let mut stream = TcpStream::connect(address.trim())?;
            stream.write_all(
                b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
            )?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            return Ok(answer);
        }
        said += &line;
    }
    Ok(said)
}
