//! Parses the text of a `tokenizer.json`. Its long lists never become JSON values, which would take up to forty times their size, and a
//! list with elements of a wrong type is refused at the first one.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use tokenizers::AddedToken;
use waterline_quant::{Few, MOST_ADDED, MOST_TOKENS, ShortList, Vocabulary};

/// Largest number of values in each short part, and of short parts in a model.
const MOST_VALUES: usize = 1 << 12;
const MOST_PARTS: usize = 64;

/// A short part of the file.
type ShortPart = Few<MOST_VALUES>;

/// The parts of the file that encoding needs.
#[derive(Deserialize)]
pub(super) struct File {
    /// The reason why the vocabulary of another file could not be read.
    pub unreadable: Option<String>,
    #[serde(default)]
    pub normalizer: ShortPart,
    #[serde(default)]
    pub pre_tokenizer: ShortPart,
    #[serde(default)]
    pub decoder: ShortPart,
    #[serde(default, deserialize_with = "added_tokens")]
    pub added_tokens: Vec<AddedToken>,
    #[serde(default)]
    pub model: Model,
}

fn added_tokens<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<AddedToken>, D::Error> {
    let list = ShortList::<AddedToken, MOST_ADDED>::deserialize(from);
    list.map(|list| list.0)
        .map_err(|error| D::Error::custom(format!("added_tokens: {error}")))
}

/// A model: its algorithm's name and switches, and its lists.
#[derive(Default)]
pub(super) struct Model {
    /// The short parts by name.
    pub switches: Value,
    pub vocab: Vocabulary,
    pub merges: Option<Merges>,
    pub scores: Vec<f32>,
}

impl<'de> Deserialize<'de> for Model {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Parts;
        impl<'de> Visitor<'de> for Parts {
            type Value = Model;

            fn expecting(&self, to: &mut fmt::Formatter) -> fmt::Result {
                to.write_str("a model")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Model, A::Error> {
                let (mut model, mut switches) = (Model::default(), Map::new());
                while let Some(key) = from.next_key::<String>()? {
                    let read = match key.as_str() {
                        "vocab" => from.next_value().map(|vocab| model.vocab = vocab),
                        "merges" => from.next_value().map(|merges| model.merges = merges),
                        "scores" => from
                            .next_value()
                            .map(|ShortList::<f32, MOST_TOKENS>(scores)| model.scores = scores),
                        _ if switches.len() == MOST_PARTS => {
                            return Err(Error::custom("model: found too many keys"));
                        }
                        _ => from
                            .next_value()
                            .map(|part: ShortPart| _ = switches.insert(key.clone(), part.0)),
                    };
                    read.map_err(|error| Error::custom(format!("model: {key:.40}: {error}")))?;
                }
                model.switches = switches.into();
                Ok(model)
            }
        }
        from.deserialize_map(Parts)
    }
}

/// Pairs of tokens that are merged, in order. They are stored in one string: a pair of short tokens is smaller than two strings.
#[derive(Default)]
pub(super) struct Merges {
    text: String,
    /// The start and the end of the second token of each pair.
    ends: Vec<[u32; 2]>,
}

impl Merges {
    /// Iterates over the pairs.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        let starts = std::iter::once(0).chain(self.ends.iter().map(|ends| ends[1]));
        starts.zip(&self.ends).map(|(start, &[middle, end])| {
            let [start, middle, end] = [start, middle, end].map(|at| at as usize);
            (&self.text[start..middle], &self.text[middle..end])
        })
    }

    fn end<E: Error>(&mut self, middle: usize) -> Result<(), E> {
        let at = |at| u32::try_from(at).map_err(|_| E::custom("found more than 4 GB"));
        if self.ends.len() == MOST_TOKENS {
            return Err(E::custom(format!(
                "found more than the {MOST_TOKENS} allowed merges"
            )));
        }
        self.ends.push([at(middle)?, at(self.text.len())?]);
        Ok(())
    }
}

impl<'de> Deserialize<'de> for Merges {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Merges;

            fn expecting(&self, to: &mut fmt::Formatter) -> fmt::Result {
                to.write_str("a list of pairs of tokens")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Merges, A::Error> {
                let mut merges = Merges::default();
                while from.next_element_seed(Pair(&mut merges))?.is_some() {}
                Ok(merges)
            }
        }
        from.deserialize_seq(List)
    }
}

/// Reads a pair, which older files write as "a b" instead of ["a", "b"].
struct Pair<'m>(&'m mut Merges);

impl<'de> DeserializeSeed<'de> for Pair<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Pair<'_> {
    type Value = ();

    fn expecting(&self, to: &mut fmt::Formatter) -> fmt::Result {
        to.write_str("a pair of tokens")
    }

    fn visit_str<E: Error>(self, pair: &str) -> Result<(), E> {
        let (first, second) = pair
            .split_once(' ')
            .filter(|(_, second)| !second.contains(' '))
            .ok_or_else(|| E::custom(format!("{pair:.60?} is not a pair")))?;
        self.0.text.push_str(first);
        let middle = self.0.text.len();
        self.0.text.push_str(second);
        self.0.end(middle)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<(), A::Error> {
        let no_pair = || Error::custom("expected pairs of tokens");
        let text = &mut self.0.text;
        from.next_element_seed(Appended(text))?
            .ok_or_else(no_pair)?;
        let middle = text.len();
        from.next_element_seed(Appended(text))?
            .ok_or_else(no_pair)?;
        while from.next_element::<IgnoredAny>()?.is_some() {}
        self.0.end(middle)
    }
}

/// Appends a JSON string to another string.
struct Appended<'t>(&'t mut String);

impl<'de> DeserializeSeed<'de> for Appended<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for Appended<'_> {
    type Value = ();

    fn expecting(&self, to: &mut fmt::Formatter) -> fmt::Result {
        to.write_str("a token")
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.0.push_str(text);
        Ok(())
    }
}
