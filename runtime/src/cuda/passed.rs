//! Which products of a persistent program pass their outputs to the phase behind them, value by value, so that it need not
//! wait until the whole phase is over: see `Passed` in phases.cu.

use bytemuck::{Pod, Zeroable};

use super::driver::Address;
use super::launches::Rows;
use super::ring_products::{Kind, Product};

/// `Passed` in phases.cu.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Passed {
    first: Address,
    phase: u32,
    pad: u32,
}

/// Where a phase passes values: bytes behind the beginning of the memory for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    offset: usize,
    /// The phase that writes them.
    phase: usize,
}

impl Place {
    /// What the program is told of it.
    pub fn in_memory(self, memory: Address) -> Passed {
        Passed {
            first: memory + self.offset as u64,
            phase: self.phase as u32,
            pad: 0,
        }
    }

    /// That of a column further on.
    fn column(self, column: usize) -> Self {
        Place {
            offset: self.offset + column * PASSED_BYTES,
            ..self
        }
    }
}

/// What a phase passes, and what is passed to it.
#[derive(Clone, Default)]
pub(super) struct Passes {
    /// The columns that its input is made of.
    pub input: Option<Place>,
    /// Its whole output.
    pub output: Option<Place>,
    /// What its output is added to.
    pub sum: Option<Place>,
    /// Whether its output is stored in its place too.
    pub stores: bool,
}

/// Bytes of a value with its mark.
const PASSED_BYTES: usize = size_of::<u64>();

/// A product of a run of phases that pass their outputs.
struct Member {
    output: Rows,
    place: Place,
    /// Whether the phase behind it takes the whole of its output.
    whole: bool,
}

/// What phases pass, each a product or not, and the bytes of memory for it.
///
/// A run of phases has no barrier in it: each takes the output of the one before, and only the last one passes nothing on. All
/// else that they read was complete when the run began, or is added to an output of the run that every block has taken. What
/// a phase stores in memory that others of the run read comes late enough: its block has taken the values that those
/// made of what they read. A place is written again when a run has ended, and all blocks have arrived behind it.
pub(super) fn passes_of(phases: &[Option<&Product>]) -> (Vec<Passes>, usize) {
    let alone = Passes {
        stores: true,
        ..Passes::default()
    };
    let mut all = vec![alone; phases.len()];
    let mut run: Vec<Member> = Vec::new();
    let mut room = PASSED_BYTES;
    for (index, product) in phases.iter().enumerate() {
        let Some(product) = product else {
            run.clear();
            continue;
        };
        let output = product.output;
        for member in run.iter().filter(|member| overlap(member.output, output)) {
            // Its store might come after the one here.
            all[member.place.phase].stores = false;
            if product.kind == Kind::Add {
                all[index].sum = Some(member.place);
            }
        }
        let next = phases.get(index + 1).copied().flatten();
        let Some((next, first)) =
            next.and_then(|next| Some((next, first_taken(product, next, &run)?)))
        else {
            run.clear();
            continue;
        };
        let offset = run
            .last()
            .map_or(0, |last| last.place.offset + bytes_of(last.output));
        let place = Place {
            offset,
            phase: index,
        };
        all[index].output = Some(place);
        all[index + 1].input = Some(place.column(first));
        run.push(Member {
            output,
            place,
            whole: next.input.is_some_and(|input| contains(input, output)),
        });
        room = room.max(offset + bytes_of(output));
    }
    (all, room)
}

/// Bytes that an output takes where it is passed.
fn bytes_of(output: Rows) -> usize {
    (output.width as usize * PASSED_BYTES).next_multiple_of(128)
}

/// The first column of a product's output that the next phase's input is made of, if it may take them as they come, behind the
/// phases of `run`.
fn first_taken(product: &Product, next: &Product, run: &[Member]) -> Option<usize> {
    let columns = product.columns(next.input?)?;
    // Two values are read at once.
    let aligned = product.output.first.is_multiple_of(16);
    let output = next.output;
    let replaced = |rows: Rows| next.kind != Kind::Add && contains(output, rows);
    let fits = |member: &Member| {
        let added = next.kind == Kind::Add && member.whole && member.output == output;
        !overlap(member.output, output) || replaced(member.output) || added
    };
    let apart = !overlap(product.output, output) || replaced(product.output);
    (aligned && apart && run.iter().all(fits)).then_some(columns.start)
}

fn contains(whole: Rows, part: Rows) -> bool {
    let (whole, part) = (whole.bytes(), part.bytes());
    whole.start <= part.start && part.end <= whole.end
}

fn overlap(a: Rows, b: Rows) -> bool {
    let (a, b) = (a.bytes(), b.bytes());
    a.start < b.end && b.start < a.end
}

#[cfg(test)]
mod tests {
    use super::super::ring_products::RingFactor;
    use super::*;

    fn rows(first: Address, width: usize) -> Rows {
        Rows {
            first,
            stride: width as i32,
            width: width as i32,
        }
    }

    fn product(kind: Kind, input: Option<Rows>, output: Rows) -> Product {
        let matrix = RingFactor::of_shape(output.width as usize, 64);
        let twins = if kind == Kind::Gated { 2 } else { 1 };
        Product {
            kind,
            factors: vec![matrix; twins],
            input,
            output,
        }
    }

    const X: Address = 0x1000;
    const INNER: Address = 0x8000;

    /// A mixer's output, a gated unit, and the next block's first product, which overwrites what is inside the unit.
    fn block() -> [Product; 4] {
        [
            product(Kind::Add, None, rows(X, 64)),
            product(Kind::Gated, Some(rows(X, 64)), rows(INNER, 128)),
            product(Kind::Add, Some(rows(INNER, 128)), rows(X, 64)),
            product(Kind::Store, Some(rows(X, 64)), rows(INNER, 400)),
        ]
    }

    #[test]
    fn products_that_follow_one_another_pass_their_outputs() {
        let products = block();
        let phases: Vec<_> = products.iter().map(Some).chain([None]).collect();
        let (passes, room) = passes_of(&phases);
        let places: Vec<_> = passes.iter().map(|passes| passes.output).collect();
        let place = |offset, phase| Some(Place { offset, phase });
        let expected = [place(0, 0), place(512, 1), place(1536, 2), None, None];
        assert_eq!(places, expected);
        assert_eq!(room, 2048);
        for (index, passes) in passes.iter().enumerate() {
            let before = index.checked_sub(1).and_then(|before| places[before]);
            assert_eq!(passes.input, before, "phase {index}");
            assert_eq!(passes.sum, if index == 2 { places[0] } else { None });
            // The first sum and what is inside the unit are overwritten before anyone waits.
            assert_eq!(passes.stores, index > 1, "phase {index}");
        }
    }

    #[test]
    fn a_phase_that_is_no_product_waits_and_is_waited_for() {
        let products = block();
        let [first, second, third, fourth] = products.each_ref();
        let phases = [
            Some(first),
            None,
            Some(second),
            Some(third),
            None,
            Some(fourth),
        ];
        let (passes, _) = passes_of(&phases);
        for (index, passes) in passes.iter().enumerate() {
            assert_eq!(passes.output.is_some(), index == 2, "phase {index}");
            assert_eq!(passes.input.is_some(), index == 3, "phase {index}");
            assert_eq!(passes.sum, None, "phase {index}");
            assert!(passes.stores, "phase {index}");
        }
    }

    #[test]
    fn nothing_is_passed_that_would_be_read_or_kept_in_part() {
        let passes = |products: [Product; 2]| {
            let phases: Vec<_> = products.iter().map(Some).collect();
            passes_of(&phases).0[0].output.is_some()
        };
        let with = |second| passes([product(Kind::Store, None, rows(X, 64)), second]);
        let part = Some(rows(X + 128, 32));
        assert!(with(product(Kind::Store, part, rows(INNER, 8))));
        // Inputs of other columns, or of more than the product has.
        assert!(!with(product(Kind::Store, None, rows(INNER, 8))));
        assert!(!with(product(
            Kind::Store,
            Some(rows(INNER, 64)),
            rows(X, 64)
        )));
        assert!(!with(product(
            Kind::Store,
            Some(rows(X, 65)),
            rows(INNER, 8)
        )));
        // What would stay of the first output, or is added to before all of it has come.
        assert!(!with(product(Kind::Store, part, rows(X, 32))));
        assert!(!with(product(Kind::Add, part, rows(X, 64))));
    }
}
