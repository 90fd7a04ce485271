//! Attention to a retained set rotates its token's query and key itself, where nothing else is left to do before it.

use super::{Outcome, Site};
use crate::cuda::schedule::{
    Accesses, MapKind, Node, PrepareGroup, PrepareTasks, RotaryInputs, Rows,
};

pub(super) fn rewrite(site: &mut Site) -> Outcome {
    let Some((columns, head_dim, from)) = site.tasks().and_then(rotated) else {
        return Outcome::Other;
    };
    site.hand_over(|queued| {
        let Node::Attend(attention) = &mut queued.node else {
            return None;
        };
        if attention.columns() != columns {
            return None;
        }
        let rotation = attention.rotation.take_if(|own| own.head_dim == head_dim)?;
        attention.attended.from = from;
        let attended = &mut attention.attended;
        [attended.k.first, attended.v.first] = rotation.cached;
        if let Some(accesses) = &mut queued.accesses {
            let after = match accesses.reads.contains(&columns[0].bytes()) {
                true => from.columns,
                false => attention.columns(),
            };
            read_instead(accesses, columns, after);
        }
        Some(rotation.rotates)
    })
}

/// Replaces columns among those that a kernel reads.
fn read_instead(accesses: &mut Accesses, before: [Rows; 3], after: [Rows; 3]) {
    for read in &mut accesses.reads {
        if let Some(index) = before.iter().position(|rows| rows.bytes() == *read) {
            *read = after[index].bytes();
        }
    }
}

/// Returns the columns of queries, keys and values, the width of a head, and the inputs, if the tasks rotate queries and keys by position
/// and copy values.
fn rotated(tasks: &PrepareTasks) -> Option<([Rows; 3], usize, RotaryInputs)> {
    let is = |group: &PrepareGroup, kinds: &[MapKind]| {
        let found = group.maps().iter().map(|map| map.kind);
        group.weight == 0 && found.eq(kinds.iter().map(|kind| *kind as i32))
    };
    let is_rotated = |group| is(group, &[MapKind::Copy, MapKind::Rope]);
    let [q, k, v] = tasks.groups() else {
        return None;
    };
    if tasks.gates > 0
        || !is_rotated(q)
        || !is_rotated(k)
        || !is(v, &[MapKind::Copy])
        || q.head_dim != k.head_dim
    {
        return None;
    }
    let groups = [q, k, v];
    let from = RotaryInputs {
        columns: groups.map(|group| group.at[0].source),
        frequencies: tasks.frequencies,
        pairs: tasks.pairs,
        magnitude: tasks.magnitude,
    };
    Some((groups.map(|group| group.columns), q.head_dim as usize, from))
}

#[cfg(test)]
mod tests {
    use bytemuck::Zeroable;

    use super::super::merge;
    use super::super::tests::{kernels, queued, rows};
    use super::*;
    use crate::cuda::schedule::{Attended, Attention, Queued, Rotation};

    const INPUTS: [Rows; 3] = [rows(1000), rows(2000), rows(3000)];
    const ROTATED: [Rows; 3] = [rows(4000), rows(5000), rows(6000)];
    const CACHED: [u64; 2] = [7000, 8000];

    fn maps() -> Queued {
        let mut tasks = PrepareTasks {
            groups: 3,
            ..PrepareTasks::zeroed()
        };
        for (index, group) in tasks.group[..3].iter_mut().enumerate() {
            (group.columns, group.head_dim) = (ROTATED[index], 8);
            group.maps = if index < 2 { 2 } else { 1 };
            (group.at[0].kind, group.at[0].source) = (MapKind::Copy as i32, INPUTS[index]);
            group.at[1].kind = MapKind::Rope as i32;
        }
        queued("prepare", 0, Node::Map(Box::new(tasks)))
    }

    /// A kernel that reads the rotated columns.
    fn attention(kernel: &str, rotates: bool, reads: &[Rows]) -> Queued {
        let mut attended = Attended::zeroed();
        [attended.q, attended.k, attended.v] = ROTATED;
        let mut attention = Attention::new(attended);
        attention.rotation = Some(Rotation {
            head_dim: 8,
            cached: CACHED,
            rotates,
        });
        let mut queued = queued(kernel, 1, Node::Attend(Box::new(attention)));
        queued.accesses = Some(Accesses {
            reads: reads.iter().map(|rows| rows.bytes()).collect(),
            writes: Vec::new(),
        });
        queued.of.as_mut().expect("an op").own.push(0..10_000);
        queued
    }

    #[test]
    fn attention_reads_what_is_not_rotated_yet() {
        let nodes = vec![
            maps(),
            attention("retain", false, &[]),
            attention("attend", true, &ROTATED),
            attention("cache", true, &ROTATED[1..]),
        ];
        let merged = merge(nodes, |_| true);
        assert_eq!(kernels(&merged), ["retain", "attend", "cache"]);
        let also: Vec<&[usize]> = merged.iter().map(|queued| &queued.also[..]).collect();
        assert_eq!(also, [&[][..], &[0], &[]]);
        let reads = |index: usize| merged[index].accesses.clone().expect("accesses").reads;
        assert_eq!(reads(1), INPUTS.map(Rows::bytes));
        // The cache takes the rotated key and the value from where attention left them.
        assert_eq!(reads(2), CACHED.map(|first| rows(first).bytes()));
        for queued in &merged {
            let Node::Attend(attention) = &queued.node else {
                panic!("attention")
            };
            assert_eq!(attention.attended.from.columns, INPUTS);
            assert!(attention.rotation.is_none());
        }
    }
}
