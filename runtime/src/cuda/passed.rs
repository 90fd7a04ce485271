//! Which phases of a persistent program pass their outputs to those behind them, value by value, so that these need not wait
//! until the whole phase is over: see `Passed` in phases.cu.

use bytemuck::{Pod, Zeroable};

use super::driver::Address;
use super::launches::Rows;
use super::levels::Touched;
use super::ring_products::{Kind, Product};

/// `Passed` in phases.cu.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Passed {
    first: Address,
}

/// Where a phase passes values: floats behind the beginning of the memory for it.
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
            first: memory + (self.offset * size_of::<f32>()) as u64,
        }
    }

    /// That of a column further on.
    fn column(self, column: usize) -> Self {
        Place {
            offset: self.offset + column,
            ..self
        }
    }
}

/// The step of a recurrence, which takes its inputs as they are passed.
pub(crate) struct Recurrence {
    /// The columns of each input, in the order in which its parameters begin with them; none for those that it has not.
    pub inputs: Vec<Option<Rows>>,
    /// Bytes of an input there, which begin with where it is passed.
    pub input_bytes: usize,
    /// Its heads' outputs.
    pub output: Rows,
    /// Blocks that have a part of its states.
    pub blocks: usize,
}

impl Recurrence {
    /// The memory that it touches, but for its states.
    pub(super) fn touched(&self) -> Touched {
        let inputs = self.inputs.iter().flatten();
        Touched {
            reads: inputs.map(|rows| rows.bytes()).collect(),
            writes: vec![self.output.bytes()],
        }
    }

    /// Whether it takes any of these columns.
    pub fn takes(&self, columns: Rows) -> bool {
        let mut inputs = self.inputs.iter().flatten();
        inputs.any(|&input| overlap(input, columns))
    }
}

/// What of a phase decides how values are passed.
#[derive(Clone, Copy)]
pub(super) enum Link<'a> {
    Product(&'a Product),
    Recurrence(&'a Recurrence),
    /// It waits until all phases before it are over.
    Barrier,
}

impl Link<'_> {
    /// The columns that it passes to others if they take them.
    fn output(&self) -> Option<Rows> {
        match self {
            Link::Product(product) => Some(product.output),
            Link::Recurrence(recurrence) => Some(recurrence.output),
            Link::Barrier => None,
        }
    }

    fn adds(&self) -> bool {
        matches!(self, Link::Product(product) if product.kind == Kind::Add)
    }

    /// Where these columns stand in the output, if it writes every one of them.
    fn first_column(&self, columns: Rows) -> Option<usize> {
        match self {
            Link::Product(product) => Some(product.columns(columns)?.start),
            Link::Recurrence(recurrence) => {
                let first = recurrence.output.first;
                let inside = contains(recurrence.output, columns);
                inside.then(|| (columns.first - first) as usize / size_of::<f32>())
            }
            Link::Barrier => None,
        }
    }
}

/// What a phase passes, and what is passed to it.
#[derive(Clone, Default)]
pub(super) struct Passes {
    /// The columns that a product's input is made of.
    pub input: Option<Place>,
    /// Columns that are added to its input, and others that gate it.
    pub added: Option<Place>,
    pub gates: Option<Place>,
    /// All inputs of a recurrence, or none of them.
    pub inputs: Vec<Option<Place>>,
    /// Its whole output.
    pub output: Option<Place>,
    /// What its output is added to.
    pub sum: Option<Place>,
    /// Whether its output is stored in its place too.
    pub stores: bool,
}

impl Passes {
    /// The phases that pass something to it.
    pub fn sources(&self) -> impl Iterator<Item = usize> {
        let alone = [self.input, self.added, self.gates, self.sum];
        let places = alone.into_iter().chain(self.inputs.iter().copied());
        places.flatten().map(|place| place.phase)
    }

    /// What the templates of phases are told, by the bits in phases.cu.
    pub fn bits(&self) -> u32 {
        let bits = [
            self.input.is_some() || !self.inputs.is_empty(),
            self.added.is_some(),
            self.gates.is_some(),
            self.output.is_some(),
            self.sum.is_some(),
        ];
        (bits.iter().rev()).fold(0, |set, &bit| 2 * set + u32::from(bit))
    }
}

/// A phase of a run of those that pass their outputs.
struct Member<'a> {
    link: Link<'a>,
    output: Rows,
    place: Place,
    /// Whether the phase behind it takes the whole of its output.
    whole: bool,
}

impl Member<'_> {
    fn place_of(&self, columns: Rows) -> Option<Place> {
        Some(self.place.column(self.link.first_column(columns)?))
    }
}

/// What phases pass, and the floats of memory for it.
///
/// A run of phases has no barrier in it: each takes the output of the one before, and only the last one passes nothing on. All
/// else that they read was passed by others of the run, or was complete when it began, or is added to an output of the run that
/// every block has taken. Where a phase of the run writes over columns that another one wrote, the model's earlier block of
/// layers is over, and nothing reads what it left there: only the last one stores it. Every phase of a token passes values in
/// a place of its own.
pub(super) fn passes_of(phases: &[Link<'_>]) -> (Vec<Passes>, usize) {
    let alone = Passes {
        stores: true,
        ..Passes::default()
    };
    let mut all = vec![alone; phases.len()];
    let mut run: Vec<Member> = Vec::new();
    let mut room = 0;
    for (index, &link) in phases.iter().enumerate() {
        let Some(output) = link.output() else {
            run.clear();
            continue;
        };
        for member in run.iter().filter(|member| overlap(member.output, output)) {
            // Its store might come after the one here.
            all[member.place.phase].stores = false;
            if link.adds() {
                all[index].sum = Some(member.place);
            }
        }
        let mut member = Member {
            link,
            output,
            place: Place {
                offset: room,
                phase: index,
            },
            whole: false,
        };
        let next = phases.get(index + 1).copied();
        let taken = next.and_then(|next| take(&mut member, next, &run));
        let Some(taken) = taken else {
            run.clear();
            continue;
        };
        all[index].output = Some(member.place);
        all[index + 1] = taken;
        // In whole lines of the cache.
        room += (output.width as usize).next_multiple_of(32);
        run.push(member);
    }
    (all, room)
}

/// What the phase behind the members of `run` and the `last` one takes of them, if that may be as it comes.
fn take(last: &mut Member, next: Link<'_>, run: &[Member]) -> Option<Passes> {
    let mut passes = Passes {
        stores: true,
        ..Passes::default()
    };
    if let Link::Product(product) = next {
        last.whole = product
            .input
            .is_some_and(|input| contains(input, last.output));
    }
    let last = &*last;
    let members = || run.iter().chain([last]);
    let latest = |rows: Rows| members().rfind(|member| overlap(member.output, rows));
    match next {
        Link::Product(product) => {
            passes.input = Some(last.place_of(product.input?)?);
            let place = |columns: Option<Rows>| match columns {
                Some(columns) => latest(columns)
                    .map_or(Some(None), |member| Some(Some(member.place_of(columns)?))),
                None => Some(None),
            };
            passes.added = place(product.added)?;
            passes.gates = place(product.gates)?;
        }
        Link::Recurrence(recurrence) => {
            let place = |rows: &Option<Rows>| match *rows {
                Some(rows) => Some(Some(latest(rows)?.place_of(rows)?)),
                None => Some(None),
            };
            passes.inputs = recurrence.inputs.iter().map(place).collect::<Option<_>>()?;
            let of_last =
                |place: &Option<Place>| place.is_some_and(|place| place.phase == last.place.phase);
            if !passes.inputs.iter().any(of_last) {
                return None;
            }
        }
        Link::Barrier => return None,
    }
    // Two values are read at once. What a product adds to was taken by every block.
    let output = next.output()?;
    let fits = |member: &Member| match overlap(member.output, output) && next.adds() {
        true => member.whole && member.output == output,
        false => true,
    };
    let aligned = last.output.first.is_multiple_of(16);
    (aligned && members().all(fits)).then_some(passes)
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
    use crate::functions::Activation;

    fn rows(first: Address, width: usize) -> Rows {
        Rows {
            first,
            stride: width as i32,
            width: width as i32,
        }
    }

    fn product(kind: Kind, input: Option<Rows>, output: Rows) -> Product {
        let matrix = RingFactor::of_shape(output.width as usize, 64);
        let twins = if matches!(kind, Kind::Gated(_)) { 2 } else { 1 };
        Product {
            kind,
            factors: vec![matrix; twins],
            input,
            added: None,
            gates: None,
            has_odd_norm: false,
            output,
        }
    }

    const X: Address = 0x1000;
    const INNER: Address = 0x8000;

    /// A mixer's output, a gated unit, and the next block's first product, which overwrites what is inside the unit.
    fn block() -> [Product; 4] {
        [
            product(Kind::Add, None, rows(X, 64)),
            product(
                Kind::Gated(Activation::Silu),
                Some(rows(X, 64)),
                rows(INNER, 128),
            ),
            product(Kind::Add, Some(rows(INNER, 128)), rows(X, 64)),
            product(Kind::Store, Some(rows(X, 64)), rows(INNER, 400)),
        ]
    }

    #[test]
    fn products_that_follow_one_another_pass_their_outputs() {
        let products = block();
        let links = products.iter().map(Link::Product);
        let phases: Vec<_> = links.chain([Link::Barrier]).collect();
        let (passes, room) = passes_of(&phases);
        let places: Vec<_> = passes.iter().map(|passes| passes.output).collect();
        let place = |offset, phase| Some(Place { offset, phase });
        let expected = [place(0, 0), place(64, 1), place(192, 2), None, None];
        assert_eq!(places, expected);
        assert_eq!(room, 256);
        for (index, passes) in passes.iter().enumerate() {
            let before = index.checked_sub(1).and_then(|before| places[before]);
            assert_eq!(passes.input, before, "phase {index}");
            assert_eq!(passes.sum, if index == 2 { places[0] } else { None });
            // The first sum and what is inside the unit are overwritten before anyone waits.
            assert_eq!(passes.stores, index > 1, "phase {index}");
        }
    }

    #[test]
    fn a_barrier_waits_and_is_waited_for() {
        let products = block();
        let [first, second, third, fourth] = products.each_ref();
        let phases = [
            Link::Product(first),
            Link::Barrier,
            Link::Product(second),
            Link::Product(third),
            Link::Barrier,
            Link::Product(fourth),
        ];
        let (passes, _) = passes_of(&phases);
        for (index, passes) in passes.iter().enumerate() {
            assert_eq!(passes.output.is_some(), index == 2, "phase {index}");
            assert_eq!(passes.input.is_some(), index == 3, "phase {index}");
            assert_eq!(passes.sum, None, "phase {index}");
            assert!(passes.stores, "phase {index}");
        }
    }

    /// Columns of the first product of a block, and what a recurrence makes of them.
    const HEADS: Address = 0x10000;

    fn recurrence(inputs: [Option<Rows>; 3]) -> Recurrence {
        Recurrence {
            inputs: inputs.to_vec(),
            input_bytes: 0,
            output: rows(HEADS, 64),
            blocks: 1,
        }
    }

    #[test]
    fn a_recurrence_takes_what_products_pass_and_passes_its_outputs() {
        let first = product(Kind::Store, None, rows(INNER, 192));
        let recurrence = recurrence([Some(rows(INNER, 64)), None, Some(rows(INNER + 256, 64))]);
        let mut last = product(Kind::Add, Some(rows(HEADS, 64)), rows(X, 64));
        (last.added, last.gates) = (Some(rows(INNER, 64)), Some(rows(INNER + 512, 64)));
        let phases = [
            Link::Product(&first),
            Link::Recurrence(&recurrence),
            Link::Product(&last),
        ];
        let (passes, room) = passes_of(&phases);
        let place = |offset, phase| Some(Place { offset, phase });
        assert_eq!(passes[0].output, place(0, 0));
        assert_eq!(passes[1].inputs, [place(0, 0), None, place(64, 0)]);
        assert_eq!(passes[1].output, place(192, 1));
        assert_eq!(passes[2].input, place(192, 1));
        // What is added, and the gate, which the product before the recurrence passed.
        assert_eq!(passes[2].added, place(0, 0));
        assert_eq!(passes[2].gates, place(128, 0));
        assert_eq!(passes[2].output, None);
        assert_eq!(room, 256);
    }

    #[test]
    fn a_recurrence_waits_if_not_all_of_its_inputs_are_passed() {
        let first = product(Kind::Store, None, rows(INNER, 64));
        let recurrence = recurrence([Some(rows(INNER, 64)), Some(rows(X, 64)), None]);
        let last = product(Kind::Store, Some(rows(HEADS, 64)), rows(X, 64));
        let phases = [
            Link::Product(&first),
            Link::Recurrence(&recurrence),
            Link::Product(&last),
        ];
        let (passes, _) = passes_of(&phases);
        assert_eq!(passes[0].output, None);
        assert!(passes[1].inputs.is_empty());
        assert!(passes[1].output.is_some());
    }

    #[test]
    fn nothing_is_passed_that_comes_from_elsewhere_or_is_added_to_in_part() {
        let passes = |products: [Product; 2]| {
            let phases: Vec<_> = products.iter().map(Link::Product).collect();
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
        // What another block of the model writes over is passed, and stays in memory no longer.
        let over = product(Kind::Store, part, rows(X, 32));
        let first = product(Kind::Store, None, rows(X, 64));
        let (passes, _) = passes_of(&[Link::Product(&first), Link::Product(&over)]);
        assert!(passes[0].output.is_some() && !passes[0].stores && passes[1].stores);
        // What is added to before all of it has come.
        assert!(!with(product(Kind::Add, part, rows(X, 64))));
    }
}
