//! Parts of a JSON text that are accepted only while they are short. serde reads them in place, so the complete text is never held as
//! values.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Elements reserved before any is read.
const FIRST: usize = 16;

/// A value that contains at most `MOST` values, including the names in objects. Null if the field is missing.
#[derive(Debug, Clone, Default)]
pub struct Few<const MOST: usize>(pub Value);

impl<'de, const MOST: usize> Deserialize<'de> for Few<MOST> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut left = MOST;
        let seed = Counted {
            left: &mut left,
            most: MOST,
        };
        seed.deserialize(from).map(Few)
    }
}

/// Reads a value as long as `left` permits more values.
struct Counted<'l> {
    left: &'l mut usize,
    most: usize,
}

impl Counted<'_> {
    fn inner(&mut self) -> Counted<'_> {
        Counted {
            left: self.left,
            most: self.most,
        }
    }

    fn count<E: Error>(&mut self) -> Result<(), E> {
        *self.left = self
            .left
            .checked_sub(1)
            .ok_or_else(|| too_many(self.most))?;
        Ok(())
    }
}

fn too_many<E: Error>(most: usize) -> E {
    E::custom(format!("found more than the {most} allowed values"))
}

impl<'de> DeserializeSeed<'de> for Counted<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(mut self, from: D) -> Result<Value, D::Error> {
        self.count()?;
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Counted<'_> {
    type Value = Value;

    fn expecting(&self, to: &mut fmt::Formatter) -> fmt::Result {
        to.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut from: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = from.next_element_seed(self.inner())? {
            list.push(value);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut from: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(name) = from.next_key::<String>()? {
            self.count()?;
            fields.insert(name, from.next_value_seed(self.inner())?);
        }
        Ok(fields.into())
    }
}

/// A list of at most `MOST` elements. Empty if the field is missing or null.
#[derive(Debug, Clone)]
pub struct ShortList<T, const MOST: usize>(pub Vec<T>);

impl<T, const MOST: usize> Default for ShortList<T, MOST> {
    fn default() -> Self {
        ShortList(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for ShortList<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Elements(PhantomData))
    }
}

struct Elements<T, const MOST: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for Elements<T, MOST> {
    type Value = ShortList<T, MOST>;

    fn expecting(&self, to: &mut fmt::Formatter) -> fmt::Result {
        write!(to, "a list of at most {MOST} elements")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(ShortList::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::with_capacity(FIRST);
        while let Some(element) = from.next_element()? {
            if list.len() == MOST {
                return Err(too_many(MOST));
            }
            list.push(element);
        }
        Ok(ShortList(list))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_read_while_it_is_short() {
        let text = r#"{"a": [1, -2, 0.5, {"b": "c"}], "d": null, "e": true}"#;
        let Few(read) = serde_json::from_str::<Few<13>>(text).expect("thirteen values and names");
        assert_eq!(read, serde_json::from_str::<Value>(text).expect("JSON"));
        let error = serde_json::from_str::<Few<12>>(text).expect_err("one more");
        assert!(error.to_string().contains("more than the 12"), "{error}");
    }

    #[test]
    fn a_list_is_refused_at_the_first_element_too_many_or_of_another_kind() {
        let read = |text: &str| serde_json::from_str::<ShortList<u32, 3>>(text);
        assert_eq!(read("[1, 2, 3]").expect("three").0, [1, 2, 3]);
        assert!(read("null").expect("none").0.is_empty());
        let said = |text: &str| read(text).expect_err(text).to_string();
        assert!(said("[1, 2, 3, 4]").contains("more than the 3"));
        assert!(said("[1, \"a\"]").contains("expected u32"));
    }
}
