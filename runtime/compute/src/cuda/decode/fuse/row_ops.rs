//! A product's epilogue does the leading maps and the gates of its outputs that need no other value.

use std::ops::Range;

use bytemuck::Zeroable;

use super::{Outcome, Site};
use crate::cuda::driver::Address;
use crate::cuda::schedule::{
    Gemv, Grid, MOST_GROUPS, MOST_TAPS, Node, PrepareGroup, PrepareTasks, Rows, overlap,
};

pub(super) fn rewrite(site: &mut Site) -> Outcome {
    let Node::Map(tasks) = &mut site.node.node else {
        return Outcome::Other;
    };
    let Some(product) = site.before.last_mut() else {
        return Outcome::Other;
    };
    let Node::Gemv(gemv) = &mut product.node else {
        return Outcome::Refused("no product precedes it");
    };
    if gemv.row_ops.is_some() {
        return Outcome::Refused("the product has row ops of another op");
    }
    let [finished, mut left] = tasks.split(gemv);
    if !gemv.has_row_ops() {
        return Outcome::Refused("each result depends on several products");
    }
    gemv.row_ops = Some(Box::new(finished));
    product.also.extend(site.node.of.as_ref().map(|of| of.op));
    let [_, blocks] = left.number();
    **tasks = left;
    site.node.call.grid = Grid::EachTile(blocks, 1);
    match blocks {
        0 => Outcome::Merged,
        _ => Outcome::Reduced,
    }
}

impl PrepareTasks {
    /// Splits the tasks into those that a product's epilogue can do, which become row ops of the product, and the remaining ones.
    fn split(&self, product: &mut Gemv) -> [Self; 2] {
        let mut left = PrepareTasks {
            groups: 0,
            gates: 0,
            ..*self
        };
        let mut finished = PrepareTasks::zeroed();
        let sources: Vec<Range<Address>> = self.sources().map(Rows::bytes).collect();
        for (index, group) in self.groups().iter().enumerate() {
            let own = group.leading_activations();
            let possible = (own > 0 || group.weight != 0)
                && group.gate.first == 0
                && group.taps <= MOST_TAPS
                && !overlap(&sources, &[group.columns.bytes()]);
            let mut rest = *group;
            if possible && product.finish(group.columns, index) {
                finished.group[index] = PrepareGroup {
                    maps: own as i32,
                    ..*group
                };
                rest = group.after_maps(own);
            }
            if rest.maps > 0 || rest.weight != 0 {
                left.group[left.groups as usize] = rest;
                left.groups += 1;
            }
        }
        for (index, gate) in self.gates().iter().enumerate() {
            if gate.is_alone() && product.finish(gate.columns, MOST_GROUPS + index) {
                finished.gate[index] = *gate;
            } else {
                left.gate[left.gates as usize] = *gate;
                left.gates += 1;
            }
        }
        [finished, left]
    }
}

impl PrepareGroup {
    /// Returns what remains of the head group after the convolution and this many maps.
    fn after_maps(&self, maps: usize) -> Self {
        let mut rest = PrepareGroup {
            weight: 0,
            taps: 0,
            maps: self.maps - maps as i32,
            ..*self
        };
        rest.at.rotate_left(maps);
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::super::merge;
    use super::super::tests::{kernels, queued, rows};
    use super::*;
    use crate::cuda::schedule::{Epilogue, GateKind, MapKind, PrepareGate, Queued, StreamedMatrix};

    /// A product of 16 columns from address 16 on, and 16 that follow.
    fn product() -> Node {
        Node::Gemv(Gemv {
            epilogue: Epilogue::Store,
            weights: vec![StreamedMatrix::for_shape(32, 64)],
            input: None,
            added: None,
            gates: None,
            has_odd_norm: false,
            output: Rows {
                width: 32,
                ..rows(16)
            },
            row_ops: None,
        })
    }

    /// An activation and, if `normed`, a norm of the first 16 columns; a sigmoid of the 16 columns at `gate`.
    fn tasks(normed: bool, gate: Address) -> PrepareTasks {
        let mut tasks = PrepareTasks {
            groups: 1,
            gates: 1,
            ..PrepareTasks::zeroed()
        };
        let group = &mut tasks.group[0];
        (group.columns, group.head_dim, group.maps) = (rows(16), 8, 1 + i32::from(normed));
        group.at[0].kind = MapKind::Activation as i32;
        group.at[1].kind = MapKind::L2Norm as i32;
        tasks.gate[0] = PrepareGate {
            columns: rows(gate),
            kind: GateKind::Sigmoid as i32,
            span: 16,
            ..PrepareGate::zeroed()
        };
        tasks
    }

    fn merged(tasks: PrepareTasks) -> Vec<Queued> {
        let map = Node::Map(Box::new(tasks));
        let nodes = vec![queued("gemv", 0, product()), queued("prepare", 0, map)];
        merge(nodes, |_| true)
    }

    #[test]
    fn a_product_does_what_needs_one_value() {
        let all = merged(tasks(false, 16 + 64));
        assert_eq!(kernels(&all), ["gemv"]);
        assert_eq!(all[0].also, [0]);
        let weights = all[0].gemv().expect("a product").weights.iter();
        let row_ops: Vec<_> = weights.map(|weight| weight.row_op).collect();
        assert_eq!(row_ops, [Some(0), Some(MOST_GROUPS)]);
    }

    #[test]
    fn a_norm_and_columns_of_other_ops_stay() {
        let all = merged(tasks(true, 144));
        assert_eq!(kernels(&all), ["gemv", "prepare"]);
        let Node::Map(left) = &all[1].node else {
            panic!("maps")
        };
        assert_eq!((left.groups, left.gates), (1, 1));
        assert_eq!(left.group[0].maps, 1);
        assert_eq!(left.group[0].at[0].kind, MapKind::L2Norm as i32);
    }
}
