//! The time of each op of a step.

use std::fmt::Write;

use waterline::Session;

use crate::error::Result;

/// Number of steps over which the mean is taken.
const STEPS: usize = 64;

/// The runs of one function.
struct Row {
    function: String,
    runs: usize,
    /// Clock cycles of waiting; `work` is in cycles too.
    wait: u64,
    work: u64,
}

/// Returns a table of the ops of a step: the number of runs of each op and its mean time in microseconds (on a GPU, the
/// time on the first SM), scaled to a step of `step_us`. `None` if a step is a recorded graph.
pub fn table(session: &mut Session, step_us: f64) -> Result<Option<String>> {
    let mut rows: Vec<Row> = Vec::new();
    for _ in 0..STEPS {
        let Some(ops) = session.time_step()? else {
            return Ok(None);
        };
        for op in ops {
            let known = rows.iter().position(|row| row.function == op.function);
            let index = known.unwrap_or_else(|| {
                rows.push(Row {
                    function: op.function,
                    runs: 0,
                    wait: 0,
                    work: 0,
                });
                rows.len() - 1
            });
            rows[index].runs += 1;
            rows[index].wait += op.wait;
            rows[index].work += op.work;
        }
    }
    let cycles: u64 = rows.iter().map(|row| row.wait + row.work).sum();
    let us = |n: u64, times: usize| {
        n as f64 / cycles.max(1) as f64 * step_us * (STEPS as f64 / times as f64)
    };
    let mut text = String::from("   ops  wait us  work us  function\n");
    for row in rows {
        let (wait, work) = (us(row.wait, row.runs), us(row.work, row.runs));
        let (runs, function) = (row.runs / STEPS, row.function);
        let _ = writeln!(text, "{runs:>6}  {wait:>7.2}  {work:>7.2}  {function}");
    }
    Ok(Some(text))
}
