//! The op in matrix form on tensor cores, for chunks: launches the kernels of `recur_chunk.cu` or `recur_rows.cu`, and of
//! `recur_states.cu`.

use super::{DecayKind, Plan, SOURCE, Writing};
use crate::cuda::{Address, Call, Grid, Launches, Parameter, RecurInputs, TensorCores};
use crate::error::Result;

/// Tokens per block, and threads per thread block.
const BLOCK: usize = 64;
const THREADS: usize = 256;
/// Bytes of the decays over each group in recur_levels.cu.
const GROUPS: usize = 8 * BLOCK * size_of::<f32>();
/// Most slices of a block that are in shared memory at once.
const SLOTS: usize = 8;
/// Most state rows, and most queries, whose share fits in a thread's registers.
const MOST_ROWS: usize = 512;
const MOST_QUERIES: usize = 6;

/// Lists of tokens, one for each partition of a state.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Lists {
    pub partitions: usize,
    /// Number of lists that contain each token.
    pub used: usize,
    /// The first block of each list, followed by the end of the last one.
    pub firsts: Address,
}

impl Lists {
    /// Largest number of places in the lists of this many tokens, with each list padded to complete blocks.
    pub(crate) fn places_of(&self, tokens: usize) -> usize {
        self.grid(1).blocks(tokens)[1] as usize * BLOCK
    }

    /// A grid with this many thread blocks for each block of places.
    pub fn grid(&self, blocks: usize) -> Grid {
        Grid::EachListedTile {
            blocks,
            tile: BLOCK,
            lists: self.partitions,
            used: self.used,
        }
    }
}

/// How a recurrence runs in matrix form.
#[derive(Clone, Copy)]
pub(in crate::ops) struct MatrixForm {
    plan: Plan,
    /// State columns per thread block of `recur_states`.
    columns: usize,
    slots: usize,
}

impl MatrixForm {
    /// The matrix form of this recurrence with this many states, for chunks of up to `tokens` tokens, on a device with these
    /// tensor cores, SMs and bytes of shared memory per thread block; `None` if processing token by token is the only way, or
    /// faster.
    pub fn new(
        plan: Plan,
        states: usize,
        tokens: usize,
        cores: TensorCores,
        [sms, shared]: [usize; 2],
    ) -> Option<Self> {
        let covered = match plan.writing {
            Writing::Add => true,
            Writing::Delta => plan.decay_kind != DecayKind::ByValue,
            Writing::Erase | Writing::Replace => plan.decay_kind == DecayKind::Rows,
        };
        let covered = covered && plan.dk <= MOST_ROWS && plan.queries <= MOST_QUERIES;
        // In a short chunk the tiles have little to share.
        let pays = cores != TensorCores::None && tokens >= 16;
        // Half as many columns where there would be too few thread blocks; each thread block loads the same inputs either way.
        let enough = states * plan.dv.div_ceil(32) >= sms;
        let forms = [32, 16].into_iter().skip(usize::from(!enough));
        let forms = forms.flat_map(|columns| {
            (2..=SLOTS).rev().map(move |slots| MatrixForm {
                plan,
                columns,
                slots,
            })
        });
        let fits = |form: &MatrixForm| form.states_shared().max(form.blocks_shared()) <= shared;
        let form = forms.into_iter().find(fits);
        form.filter(|_| covered && pays)
    }

    fn row_decays(&self) -> bool {
        matches!(self.plan.decay_kind, DecayKind::Rows | DecayKind::ByKey)
    }

    fn column_decays(&self) -> bool {
        self.plan.decay_kind == DecayKind::ByValue
    }

    /// Bytes of a [64, 64] operand in transit (bf16, `parts` terms per number).
    fn image(&self) -> usize {
        self.plan.parts * 2 * BLOCK * BLOCK
    }

    /// Bytes of such an operand in shared memory, with padding.
    fn tile(&self) -> usize {
        self.plan.parts * 2 * BLOCK * (BLOCK + 8)
    }

    fn panels(&self) -> usize {
        self.plan.queries + usize::from(self.plan.writing != Writing::Add)
    }

    /// Writes per token, each a product of keys and values.
    fn writes(&self) -> usize {
        1 + usize::from(self.plan.writing == Writing::Replace)
    }

    fn slices(&self) -> usize {
        self.plan.dk.div_ceil(BLOCK)
    }

    /// Bytes of shared memory of `recur_blocks` or `recur_row_blocks`.
    fn blocks_shared(&self) -> usize {
        let vector = BLOCK * size_of::<f32>();
        let own = if self.row_decays() || self.column_decays() {
            // The operands of all levels.
            3 * self.tile() + GROUPS
        } else {
            2 * self.tile() + 3 * vector
        };
        own + self.panels() * self.writes() * self.tile() + (2 + self.plan.queries) * vector
    }

    /// Bytes of shared memory of `recur_states`, with a barrier for each slot.
    fn states_shared(&self) -> usize {
        let rows = (self.slices() + self.writes()) * BLOCK;
        let copy = rows * self.plan.parts * 2 * (self.columns + 8);
        self.slots * (self.panels() * self.image() + size_of::<u64>()) + copy
    }

    /// Bytes of a token block's results: `ChunkBlock` in recur_block.cu.
    fn block_bytes(&self) -> usize {
        let values = BLOCK * self.plan.dv.next_multiple_of(BLOCK);
        let decays = match self.plan.decay_kind {
            _ if self.row_decays() => self.slices() * BLOCK,
            // Also the decay up to each token.
            _ if self.column_decays() => values + values / BLOCK,
            _ => 4,
        };
        let images = self.slices() * (self.panels() + self.writes());
        images * self.image() + (self.writes() * values + decays) * size_of::<f32>()
    }

    /// The recurrence.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Runs the recurrence over the chunk, or each partition of its states over the places of `inputs` that `lists` assigns to it.
    pub fn launch(
        &self,
        states: usize,
        inputs: RecurInputs,
        lists: Option<Lists>,
        launches: &mut Launches,
    ) -> Result<()> {
        let Plan {
            dk,
            dv,
            queries,
            decay_kind,
            complement,
            writing,
            finish,
            aligned,
            parts,
            ..
        } = self.plan;
        let (decay, write) = (decay_kind as i32, writing as i32);
        let (columns, slots) = (self.columns, self.slots);
        let heads = lists.map_or(states, |lists| states / lists.partitions);
        let firsts = lists.map_or(0, |lists| lists.firsts);
        let grid = lists.map_or(Grid::EachTile(heads, BLOCK), |lists| lists.grid(heads));
        let places = lists.map_or(launches.tokens, |lists| lists.places_of(launches.tokens));
        let tokens = || match lists {
            None => Parameter::tokens(),
            Some(_) => Parameter::int(places),
        };
        let bytes = heads * places.div_ceil(BLOCK) * self.block_bytes();
        let scratch = launches.shared_address("blocks of recurrences", bytes)?;
        launches.push(Call {
            source: SOURCE,
            kernel: if self.row_decays() {
format!("recur_row_blocks<{dk}, {dv}, {queries}, {decay}, {complement}, {write}, {aligned}, {parts}>")
} else {
format!("recur_blocks<{dk}, {dv}, {queries}, {decay}, {write}, {aligned}, {parts}>")
},
            grid,
            threads: THREADS,
            shared: self.blocks_shared(),
            parameters: vec![
                Parameter::value(inputs),
                Parameter::pointer("u16", scratch),
                tokens(),
            ],
        });
        launches.push(Call {
            source: SOURCE,
            kernel: format!(
                "recur_states<{dk}, {dv}, {queries}, {decay}, {write}, {columns}, {slots}, {finish}, {parts}>"
            ),
            grid: Grid::Blocks(states * dv.div_ceil(columns)),
            threads: THREADS,
            shared: self.states_shared(),
            parameters: vec![
                Parameter::value(inputs),
                Parameter::pointer("u16", scratch),
                tokens(),
                Parameter::pointer("const int", firsts),
                Parameter::int(heads),
            ],
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bytemuck::Zeroable;

    use super::super::{Place, Update};
    use super::*;

    fn form(
        sizes: [usize; 3],
        (decay_kind, writing): (DecayKind, Writing),
        tokens: usize,
        shared: usize,
    ) -> Option<MatrixForm> {
        let update = Update {
            decay_kind,
            complement: false,
            writing,
        };
        let place = Place {
            tokens,
            sms: 132,
            persistent: false,
            has_routing: false,
        };
        let plan = Plan::new(sizes, 6, update, &RecurInputs::zeroed(), place);
        MatrixForm::new(plan, 6, tokens, TensorCores::Warps, [132, shared << 10])
    }

    #[test]
    fn chunks_run_in_matrix_form() {
        let gdn = (DecayKind::Head, Writing::Delta);
        assert!(form([256, 512, 1], gdn, 2048, 227).is_some());
        assert!(form([256, 512, 1], (DecayKind::Rows, Writing::Add), 2048, 227).is_some());
        assert!(form([128, 128, 1], (DecayKind::Rows, Writing::Delta), 2048, 99).is_some());
        assert!(form([512, 64, 1], (DecayKind::ByValue, Writing::Add), 2048, 99).is_some());
        assert!(form([64, 512, 1], (DecayKind::ByKey, Writing::Add), 2048, 99).is_some());
        assert!(form([128, 64, 4], (DecayKind::Step, Writing::Add), 64, 227).is_some());
        assert!(form([256, 512, 1], gdn, 1, 227).is_none());
        assert!(form([1024, 64, 1], gdn, 2048, 227).is_none());
        assert!(form([64, 64, 1], (DecayKind::Rows, Writing::Replace), 2048, 227).is_some());
        assert!(
            form(
                [256, 512, 1],
                (DecayKind::Head, Writing::Replace),
                2048,
                227
            )
            .is_none()
        );
        assert!(form([128, 128, 1], (DecayKind::Rows, Writing::Erase), 2048, 99).is_some());
        assert!(form([128, 128, 1], (DecayKind::Head, Writing::Erase), 2048, 227).is_none());
    }

    #[test]
    fn blocks_of_threads_are_not_fewer_than_processors_where_columns_allow() {
        let columns = |dv| {
            let of = |form: MatrixForm| form.columns;
            form([256, dv, 1], (DecayKind::Head, Writing::Delta), 2048, 227).map(of)
        };
        assert_eq!((columns(512), columns(1024)), (Some(16), Some(32)));
    }

    #[test]
    fn shared_memory_decides_how_many_slices_are_on_their_way() {
        let of = |shared| {
            form(
                [128, 128, 1],
                (DecayKind::Head, Writing::Delta),
                2048,
                shared,
            )
        };
        assert_eq!(of(227).map(|form| form.slots), Some(6));
        assert!(of(99).is_some_and(|form| form.slots < SLOTS && form.states_shared() <= 99 << 10));
        assert!(of(64).is_none());
    }
}
