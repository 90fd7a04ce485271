//! A recurrence scales queries and keys to unit length, where nothing else is left to do before it.

use super::{Outcome, Site};
use crate::cuda::schedule::{MapKind, PrepareGroup, PrepareTasks, Rows};

pub(super) fn rewrite(site: &mut Site) -> Outcome {
    let Some(columns) = site.tasks().and_then(unit_columns) else {
        return Outcome::Other;
    };
    site.hand_over(|queued| {
        let (own, unit) = queued.node.unit_heads()?;
        (own == columns).then(|| {
            *unit = 1;
            true
        })
    })
}

/// Returns the columns of queries and keys, if the tasks are norms of their heads.
fn unit_columns(tasks: &PrepareTasks) -> Option<[Rows; 2]> {
    let unit = |group: &PrepareGroup| {
        group.weight == 0 && matches!(group.maps(), [map] if map.kind == MapKind::L2Norm as i32)
    };
    match tasks.groups() {
        [q, k] if tasks.gates == 0 && unit(q) && unit(k) => Some([q.columns, k.columns]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use bytemuck::Zeroable;

    use super::super::merge;
    use super::super::tests::{ROWS, kernels, queued};
    use super::*;
    use crate::cuda::schedule::{Node, Queued, RecurInputs};

    /// Norms of the heads in both columns, and this many gates.
    fn norms(gates: i32) -> Queued {
        let mut tasks = PrepareTasks {
            groups: 2,
            gates,
            ..PrepareTasks::zeroed()
        };
        for (group, columns) in tasks.group.iter_mut().zip(ROWS) {
            (group.columns, group.head_dim, group.maps) = (columns, 8, 1);
            group.at[0].kind = MapKind::L2Norm as i32;
        }
        queued("prepare", 0, Node::Map(Box::new(tasks)))
    }

    fn recurrence([q, k]: [Rows; 2], can_normalize: bool) -> Queued {
        let mut inputs = RecurInputs::zeroed();
        (inputs.q.rows, inputs.k.rows) = (q, k);
        let node = Node::Recur {
            inputs: Box::new(inputs),
            can_normalize,
        };
        queued("recur", 1, node)
    }

    fn normalizes(queued: &Queued) -> bool {
        matches!(&queued.node, Node::Recur { inputs, .. } if inputs.unit == 1)
    }

    #[test]
    fn the_only_reader_does_what_it_can() {
        let merged = merge(vec![norms(0), recurrence(ROWS, true)], |_| true);
        assert_eq!(kernels(&merged), ["recur"]);
        assert_eq!(merged[0].also, [0]);
        assert!(normalizes(&merged[0]));
    }

    #[test]
    fn other_work_stays_a_node() {
        let [q, k] = ROWS;
        for (norms, reader, read_once, reason) in [
            (norms(0), recurrence(ROWS, true), false, "several ops read"),
            (norms(1), recurrence(ROWS, true), true, ""),
            (
                norms(0),
                recurrence([k, q], true),
                true,
                "the next op cannot",
            ),
            (
                norms(0),
                recurrence(ROWS, false),
                true,
                "the next op cannot",
            ),
        ] {
            let merged = merge(vec![norms, reader], |_| read_once);
            assert_eq!(kernels(&merged), ["prepare", "recur"]);
            assert!(!normalizes(&merged[1]));
            let refusals = merged[0].refusals.iter().map(|(_, reason)| *reason);
            let refusals: Vec<&str> = refusals.collect();
            assert_eq!(refusals.is_empty(), reason.is_empty(), "{refusals:?}");
            assert!(refusals.iter().all(|found| found.starts_with(reason)));
        }
    }
}
