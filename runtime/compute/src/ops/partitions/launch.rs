//! Launches of the kernels in `partitions.cu`.

use super::Partitions;
use super::matrix_form::PartitionLists;
use crate::abi::{DeviceType, device_struct};
use crate::cuda::{Call, Grid, Launches, Parameter, Rows, Source};
use crate::error::Result;
use crate::ops::{DeviceOp, recur};

/// Kernel sources of the recurrence, then of this op.
pub(super) const SOURCE: &[Source] = &{
    let [a, b, c, d, e, f, g, h] = *recur::SOURCE;
    let own = [
        Source::new("ops/partitions/partitions.cu", &[PartitionRoute::define]),
        Source::new(
            "ops/partitions/partitions_chunk.cu",
            &[PartitionLists::define],
        ),
    ];
    let [i, j] = own;
    [a, b, c, d, e, f, g, h, i, j]
};

device_struct! {
    /// The partitions of a token, and how their weights are used.
    pub(super) struct PartitionRoute {
        /// Partition numbers, the largest weight first, then the weights: `[2, chosen]`.
        chosen: Rows,
        count: i32,
        /// Partitions that are written, from the first chosen on.
        writers: i32,
        /// Partitions that are read.
        readers: i32,
        /// Whether weights multiply queries.
        weigh_queries: i32,
        /// Whether weights multiply keys.
        weigh_keys: i32,
        /// Whether queries and keys are then normalized to unit length.
        unit_length: i32,
    }
}

impl DeviceOp for Partitions {
    fn fills_device(&self) -> bool {
        true
    }

    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let (heads, width) = (self.recur.heads, self.recur.heads * self.recur.dv);
        let parts = if self.own_columns { self.partitions } else { 1 };
        let mut inputs = self.recur.device_inputs(parts, launches)?;
        let step = launches.tokens == 1;
        // A step has thread blocks for the chosen partitions only.
        let open = if step { self.chosen() } else { self.partitions };
        let plan = self.recur.plan(open * heads, &inputs, launches);
        let route = PartitionRoute {
            chosen: launches.rows(self.route),
            count: (self.route.width / 2) as i32,
            writers: self.writers as i32,
            readers: self.readers as i32,
            weigh_queries: self.weigh_queries.into(),
            weigh_keys: self.weigh_keys.into(),
            unit_length: self.unit_length.into(),
        };
        if let Some(form) = self.matrix_form(&inputs, launches) {
            return self.launch_gathered(form, inputs, route, launches);
        }

        let out = inputs.out;
        // Outputs of a single partition need no sum.
        let summed = self.add || self.readers > 1;
        if summed {
            let floats = self.readers * width;
            let bytes = launches.tokens * floats * size_of::<f32>();
            inputs.out = Rows {
                first: launches.scratch_address(bytes)?,
                stride: floats as i32,
                width: floats as i32,
            };
        }
        let mut parameters = vec![Parameter::value(inputs), Parameter::value(route)];
        let name = if step {
            "partitions_step"
        } else {
            "partitions"
        };
        if !step {
            parameters.push(Parameter::tokens());
        }
        launches.push(Call {
            source: SOURCE,
            kernel: format!("{name}<{heads}, {}>", plan.arguments()),
            grid: Grid::Blocks(open * heads * plan.groups()),
            threads: plan.threads(),
            shared: plan.shared(),
            parameters,
        });
        let parts = inputs.out.bytes();
        let mut read = inputs.read();
        read.push(route.chosen.bytes());
        launches.narrow_accesses(&read, std::slice::from_ref(&parts));
        if summed {
            let threads = 256;
            launches.push(Call {
                source: SOURCE,
                kernel: format!("sum_partitions<{width}, {}, {}>", self.readers, self.add),
                grid: Grid::EachToken(width.div_ceil(threads)),
                threads,
                shared: 0,
                parameters: vec![Parameter::value(inputs.out), Parameter::value(out)],
            });
            launches.narrow_accesses(&[parts], &[out.bytes()]);
        }
        Ok(())
    }
}
