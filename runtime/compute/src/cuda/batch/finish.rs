//! A product over all slots that also does the work on single values after it: one kernel less in every layer.

use std::ops::Range;

use super::Calls;
use super::table::{STATES, Table};
use crate::cuda::driver::Address;
use crate::cuda::schedule::{FinishedProduct, Node, Parameter, Queued};

/// Joins products with the work after them. `starts` has the offset of each call's parameters in a slot; returns the offsets of the
/// remaining calls.
pub(super) fn join(programs: &mut [Vec<Calls>], table: &Table, starts: Vec<usize>) -> Vec<usize> {
    let mut starts = starts.into_iter();
    let mut left = Vec::new();
    for parts in programs {
        let mut after: Vec<Calls> = Vec::with_capacity(parts.len());
        for part in parts.drain(..) {
            if let Calls::Each(slots) = &part {
                let own: Vec<usize> = starts.by_ref().take(slots[0].len()).collect();
                if let ([work], Some(Calls::Rows(calls))) = (&slots[0][..], after.last_mut())
                    && let Some(product) = calls.last_mut()
                    && let Some(joined) = joined(product, work, table, own[0])
                {
                    *product = joined;
                    continue;
                }
                left.extend(own);
            }
            after.push(part);
        }
        *parts = after;
    }
    left
}

/// Joins a product with the work, whose parameters begin `start` bytes into a slot. Returns `None` if they do not fit together, or if slots
/// share a state, which each slot would have to find as the previous one left it.
fn joined(product: &mut Queued, work: &Queued, table: &Table, start: usize) -> Option<Queued> {
    let (Some(finished), Node::Map(tasks)) = (&product.finished, &work.node) else {
        return None;
    };
    let made = |part: &Range<Address>| {
        let mut columns = finished.columns.iter();
        columns.any(|all| all.start <= part.start && part.end <= all.end)
    };
    let fits = tasks.is_on_single_values()
        && tasks.accesses().writes.iter().all(made)
        && tasks.convolved().all(|state| STATES.contains(&state));
    if !fits {
        return None;
    }
    let FinishedProduct { mut call, .. } = product.finished.take()?;
    call.parameters.extend([
        Parameter::pointer("const u8", table.address() + start as u64),
        Parameter::int(table.stride()),
    ]);
    Some(Queued::new(*call, Node::Prefetches))
}
