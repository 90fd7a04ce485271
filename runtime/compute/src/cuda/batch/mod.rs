//! Kernels of batches: tokens of one or several sessions in one pass over the weights. A slot is one row of each activation buffer.

mod finish;
mod saved;
mod table;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use table::{STATE, Table};

use crate::cuda::device::Device;
use crate::cuda::driver::{Address, Argument, Driver, Kernel, Launch, Memory, Queue};
use crate::cuda::schedule::{Launches, Queued, Rooms, SessionMemory, Slot};
use crate::error::Result;

/// The calls of one part of a program.
pub enum Calls {
    /// Over all rows at once.
    Rows(Vec<Queued>),
    /// A list of calls per slot; the lists differ only in their parameters.
    Each(Vec<Vec<Queued>>),
}

impl Calls {
    /// Makes calls over up to `most` rows, each of which gets the same bits as in a step.
    pub fn rows(
        memory: &SessionMemory,
        scratch: &mut Vec<Memory>,
        rooms: &mut Rooms,
        most: usize,
        write: impl Fn(&mut Launches) -> Result<()>,
    ) -> Result<Self> {
        let mut launches = Launches::new(memory, scratch, most, false);
        launches.as_steps = true;
        launches.workspaces.shared = std::mem::take(rooms);
        write(&mut launches)?;
        *rooms = std::mem::take(&mut launches.workspaces.shared);
        Ok(Calls::Rows(launches.into_calls()))
    }

    /// Makes the calls of one slot, whose state is at the address in `memory`, or at the one that [`Program::set_state`] sets.
    pub fn slot(
        memory: &SessionMemory,
        scratch: &mut Vec<Memory>,
        rooms: &mut Rooms,
        slot: Slot,
        write: impl Fn(&mut Launches) -> Result<()>,
    ) -> Result<Vec<Queued>> {
        let mut launches = Launches::new(memory, scratch, 1, false);
        launches.slot = slot;
        launches.workspaces.shared = std::mem::take(rooms);
        write(&mut launches)?;
        *rooms = std::mem::take(&mut launches.workspaces.shared);
        let mut calls = launches.into_calls();
        calls.iter_mut().for_each(|queued| queued.by_slot = true);
        Ok(calls)
    }
}

/// Compiled programs, and the parameters of their slots.
pub struct Program {
    parts: Vec<Vec<Part>>,
    table: Table,
}

impl Program {
    /// Placeholder for the address of a state that [`Program::set_state`] sets.
    pub const STATE: Address = STATE;

    /// Compiles programs of up to `most` slots.
    pub fn new(
        mut programs: Vec<Vec<Calls>>,
        most: usize,
        device: &Device,
        queue: &dyn Queue,
    ) -> Result<Self> {
        let parts = || programs.iter().flatten();
        let slots = (0..most).map(|slot| {
            let calls = parts().filter_map(|part| match part {
                Calls::Rows(_) => None,
                Calls::Each(slots) => Some(&slots[slot]),
            });
            calls.flatten().collect()
        });
        let driver: &Arc<dyn Driver> = device.driver();
        let (table, starts) = Table::new(&slots.collect::<Vec<_>>(), driver, queue)?;
        let starts = finish::join(&mut programs, &table, starts);
        let parts = || programs.iter().flatten();
        let calls = parts().flat_map(|part| match part {
            Calls::Rows(calls) => calls,
            Calls::Each(slots) => &slots[0],
        });
        let mut kernels = device.kernels(&calls.collect::<Vec<_>>())?.into_iter();
        let mut starts = starts.into_iter();
        let mut place = |part: Calls| match part {
            Calls::Rows(calls) => Part::Rows(calls.into_iter().zip(&mut kernels).collect()),
            Calls::Each(mut slots) => {
                let calls = slots.swap_remove(0).into_iter();
                let calls = calls.zip(&mut kernels).zip(&mut starts);
                let placed = calls.map(|((queued, kernel), start)| {
                    (queued, kernel, table.address() + start as u64)
                });
                Part::Each(placed.collect())
            }
        };
        let parts = programs.into_iter();
        let parts = parts.map(|parts| parts.into_iter().map(&mut place).collect());
        Ok(Program {
            parts: parts.collect(),
            table,
        })
    }

    /// Bytes of device memory.
    pub fn bytes(&self) -> usize {
        self.table.bytes()
    }

    /// Makes slot `slot` work on the state at `state` from now on.
    pub fn set_state(&mut self, slot: usize, state: Address, queue: &dyn Queue) -> Result<()> {
        self.table.set_state(slot, state, queue)
    }

    /// Returns the launches of program number `program` for this many slots, side by side or one after another.
    pub fn launches(&self, program: usize, slots: usize, side_by_side: bool) -> Vec<Launch> {
        let stride = self.table.stride();
        let parts = self.parts[program].iter();
        parts
            .flat_map(|part| part.launches(slots, side_by_side, stride))
            .collect()
    }
}

/// Calls with their kernels.
enum Part {
    Rows(Vec<(Queued, Kernel)>),
    /// Calls of one slot, with the addresses of the first slot's parameters.
    Each(Vec<(Queued, Kernel, Address)>),
}

impl Part {
    fn launches(&self, slots: usize, side_by_side: bool, stride: usize) -> Vec<Launch> {
        let calls = match self {
            Part::Rows(calls) => {
                let launches = calls.iter();
                let launches = launches.map(|(queued, kernel)| queued.launch(*kernel, slots));
                return launches.collect();
            }
            Part::Each(calls) => calls,
        };
        let launch = |(queued, kernel, table): &(Queued, Kernel, Address), first, tokens, z| {
            let [x, y, _] = queued.call.grid.blocks(1);
            let value = |value: u64| Argument(Box::new([value]));
            Launch {
                kernel: *kernel,
                grid: [x, y, z],
                threads: queued.call.threads as u32,
                shared: queued.call.shared as u32,
                arguments: vec![
                    value(table + (first * stride) as u64),
                    value(stride as u64),
                    value(tokens),
                ],
                cluster: 1,
                cooperative: false,
            }
        };
        if side_by_side {
            let launches = calls.iter().map(|call| launch(call, 0, 1, slots as u32));
            return launches.collect();
        }
        if calls.iter().all(|(queued, ..)| queued.block_local) {
            let launches = calls.iter().map(|call| launch(call, 0, slots as u64, 1));
            return launches.collect();
        }
        let launches = (0..slots).flat_map(|slot| {
            let launches = calls.iter();
            launches.map(move |call| launch(call, slot, 1, 1))
        });
        launches.collect()
    }
}
