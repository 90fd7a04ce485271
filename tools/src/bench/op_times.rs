//! Where a step's time goes.

use std::fmt::Write;

use waterline::Session;

use crate::error::Result;

/// Steps to take the mean of.
const STEPS: usize = 64;

/// A table of the ops of a step: how often each runs, and the microseconds of one, on the first SM where it is a GPU's function, for a
/// step that takes `step_us` in all. None where a step is a recorded graph.
pub fn table(session: &mut Session, step_us: f64) -> Result<Option<String>> {
    let mut rows: Vec<(String, usize, u64, u64)> = Vec::new();
    for _ in 0..STEPS {
        let Some(ops) = session.time_step()? else {
            return Ok(None);
        };
        for op in ops {
            let known = rows.iter().position(|row| row.0 == op.function);
            let index = known.unwrap_or_else(|| {
                rows.push((op.function, 0, 0, 0));
                rows.len() - 1
            });
            let row = &mut rows[index];
            *row = (
                std::mem::take(&mut row.0),
                row.1 + 1,
                row.2 + op.wait,
                row.3 + op.work,
            );
        }
    }
    let cycles: u64 = rows.iter().map(|row| row.2 + row.3).sum();
    let us = |n: u64, times: usize| {
        n as f64 / cycles.max(1) as f64 * step_us * (STEPS as f64 / times as f64)
    };
    let mut text = String::from("   ops  wait us  work us  function\n");
    for (function, times, wait, work) in rows {
        let (wait, work) = (us(wait, times), us(work, times));
        let _ = writeln!(
            text,
            "{:>6}  {wait:>7.2}  {work:>7.2}  {function}",
            times / STEPS
        );
    }
    Ok(Some(text))
}
