//! `waterline inspect` of a state file.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use waterline::{StateFile, StateRecord};

use crate::error::{Error, Result};
use crate::sha256;
use crate::text::{json_line, shown};
use crate::units;

/// Prints the header and the checkpoints of a state file, whose hashes are all checked.
pub fn run(path: &Path, as_json: bool) -> Result<ExitCode> {
    let file = StateFile::open(path)?;
    file.verify()?;
    let about = file.description();
    let text = if as_json {
        let record = |record: StateRecord| {
            json!({
                "position": record.position, "tokens": record.tokens, "rows": record.rows,
                "state": record.state, "tokens_hash": sha256::digits(&record.tokens_hash),
            })
        };
        json_line(&json!({
            "file": path, "bytes": file.bytes(), "header": about,
            "records": file.records().map(record).collect::<Vec<_>>(),
        }))
    } else {
        let kind = if about.exact { ", exact" } else { "" };
        let mut lines = vec![
            format!("state        {}", path.display()),
            format!("model        {}, {}", about.name, about.model),
            format!(
                "tokenizer    {}",
                about.tokenizer.as_deref().unwrap_or("none")
            ),
            format!(
                "read on      {}{kind}, {} threads, {} tokens at once",
                about.device, about.threads, about.chunk
            ),
            format!(
                "text         {} tokens, {} checkpoints, {}",
                units::thousands(file.tokens().len() as u64),
                file.records().len(),
                units::bytes(file.bytes() as usize)
            ),
            String::new(),
            "position     bytes of rows     of state  hash of the tokens".into(),
        ];
        lines.extend(file.records().map(|record| {
            let [position, rows, state] = [record.position, record.rows, record.state];
            let hash = sha256::digits(&record.tokens_hash);
            format!("{position:>8} {rows:>17} {state:>12}  {hash}")
        }));
        shown(&(lines.join("\n") + "\n"))
    };
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(Error::Stdout)?;
    Ok(ExitCode::SUCCESS)
}
