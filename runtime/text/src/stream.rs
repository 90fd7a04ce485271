/// Converts the bytes of successive tokens to text; a token may end inside a character.
///
/// Everything pushed and then [`finish`](Self::finish)ed equals [`String::from_utf8_lossy`] of all bytes: invalid bytes become U+FFFD,
/// and an incomplete character waits for the next push.
#[derive(Clone, Debug, Default)]
pub struct TextStream {
    /// The incomplete character that is held back; during a push, followed by the new bytes.
    bytes: Vec<u8>,
    text: String,
}

impl TextStream {
    /// Creates an empty stream.
    pub fn new() -> Self {
        Self {
            bytes: Vec::with_capacity(256),
            text: String::with_capacity(256),
        }
    }

    /// Adds the bytes of the next token and returns the text that they complete, which may be empty. Allocates only for a token longer
    /// than any before.
    pub fn push(&mut self, bytes: &[u8]) -> &str {
        self.bytes.extend_from_slice(bytes);
        self.text.clear();
        let mut read = 0;
        for chunk in self.bytes.utf8_chunks() {
            self.text.push_str(chunk.valid());
            read += chunk.valid().len();
            let invalid = chunk.invalid();
            let at_end = read + invalid.len() == self.bytes.len();
            if at_end && is_incomplete(invalid) {
                break;
            }
            if !invalid.is_empty() {
                self.text.push(char::REPLACEMENT_CHARACTER);
            }
            read += invalid.len();
        }
        self.bytes.drain(..read);
        &self.text
    }

    /// Ends the text: an incomplete character becomes U+FFFD. The stream can then be used again.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        if !self.bytes.is_empty() {
            self.bytes.clear();
            self.text.push(char::REPLACEMENT_CHARACTER);
        }
        &self.text
    }
}

/// Whether more bytes could complete these invalid ones to a character.
fn is_incomplete(invalid: &[u8]) -> bool {
    std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_character_appears_with_its_last_byte() {
        let mut stream = TextStream::new();
        assert_eq!(stream.push("aé".as_bytes()), "aé");
        let fire = "🔥".as_bytes();
        assert_eq!(stream.push(&[b'x', fire[0]]), "x");
        assert_eq!(stream.push(&fire[1..3]), "");
        assert_eq!(stream.push(&[fire[3], b'!']), "🔥!");
        assert_eq!(stream.finish(), "");
    }

    #[test]
    fn invalid_bytes_do_not_swallow_their_neighbours() {
        let mut stream = TextStream::new();
        assert_eq!(stream.push(b"a\xffb"), "a\u{fffd}b");
        assert_eq!(stream.push(b"\xe2\x82"), "");
        assert_eq!(stream.push(b"c"), "\u{fffd}c");
        assert_eq!(stream.push(b"\xf0\x9f"), "");
        assert_eq!(stream.finish(), "\u{fffd}");
        assert_eq!(stream.push(b"\x94"), "\u{fffd}");
    }

    #[test]
    fn steady_state_does_not_grow() {
        let mut stream = TextStream::new();
        let before = (stream.bytes.capacity(), stream.text.capacity());
        for _ in 0..10_000 {
            stream.push(b" word \xf0\x9f");
            stream.push(b"\x94\xa5");
        }
        assert_eq!((stream.bytes.capacity(), stream.text.capacity()), before);
    }

    /// Parts of characters and stray bytes, so that sequences break in every way.
    fn bytes() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let byte = prop_oneof![
            any::<u8>(),
            prop::sample::select("aé€🔥".as_bytes().to_vec()),
        ];
        prop::collection::vec(prop::collection::vec(byte, 0..6), 0..20)
    }

    proptest! {
        #[test]
        fn any_split_reads_as_the_whole(pieces in bytes()) {
            let mut stream = TextStream::new();
            let mut text = String::new();
            for piece in &pieces {
                text.push_str(stream.push(piece));
            }
            text.push_str(stream.finish());
            prop_assert_eq!(text, String::from_utf8_lossy(&pieces.concat()).into_owned());
        }

        #[test]
        fn valid_text_is_never_late_by_a_character(text in "[aé€🔥]{0,20}") {
            let mut stream = TextStream::new();
            let mut seen = String::new();
            for (index, byte) in text.bytes().enumerate() {
                seen.push_str(stream.push(&[byte]));
                let complete = text.char_indices().map(|(at, c)| at + c.len_utf8());
                prop_assert_eq!(seen.len(), complete.filter(|&end| end <= index + 1).max().unwrap_or(0));
            }
        }
    }
}
