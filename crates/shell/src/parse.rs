//! The reader: bytes to tree, in one pass.
//!
//! Why our own: a script is written by whoever wants past us, so the reader must be bounded by
//! construction. It keeps these three invariants.
//!
//! - **Steps are counted** against a budget linear in the text. The only place that reads bytes twice is
//!   `((` and `$((`, which may turn out to be subshells, and nesting them runs into the budget.
//! - **Depth is counted** in every function that can reach itself, and the stack it runs on is sized for the
//!   limit (`on_big_stack`).
//! - **What is not surely understood is an error**, never a guess. An error becomes `Unparsed`.

use std::rc::Rc;

use crate::report::{Dialect, UnparsedReason};
use crate::syntax::{
    AndOr, Arm, Command, Derived, Document, Item, Kind, List, Part, Pipeline, Redirect, Script, Span, Target,
    Word,
};

/// No honest call is larger; what is larger belongs into a file.
pub(crate) const MAX_BYTES: usize = 64 * 1024;
/// Levels of nesting, each of them a few frames of the reader.
pub(crate) const MAX_DEPTH: usize = 200;

/// Why reading stopped, with a place in the analysed text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Syntax { place: usize, what: &'static str },
    Whole(UnparsedReason),
}

type Read<T> = Result<T, Stop>;

/// Reads a script. `places`, if given, tells for each byte where in the analysed text it came from.
pub(crate) fn parse(text: &[u8], places: Option<&[usize]>, dialect: Dialect, depth: usize) -> Read<Script> {
    if text.len() > MAX_BYTES {
        return Err(Stop::Whole(UnparsedReason::TooLarge { limit: MAX_BYTES }));
    }
    if text.contains(&0) {
        return Err(Stop::Whole(UnparsedReason::Nul));
    }
    let mut reader = Reader {
        text,
        places,
        dialect,
        pos: 0,
        end: text.len(),
        depth,
        fuel: text.len() * 32 + 4096,
        pending: Vec::new(),
        documents: Vec::new(),
    };
    let list = reader.list(Until::End)?;
    if reader.pos < reader.end {
        return reader.fail("a word or operator that nothing opened");
    }
    reader.read_documents()?;
    Ok(Script { list, documents: reader.documents })
}

/// What may end a list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    End,
    Paren,
    Words(&'static [&'static [u8]]),
    Arm,
}

/// How the bytes of a word are taken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Ends at a blank or operator.
    Plain,
    /// The right side of `=~`: parentheses and bars are ordinary.
    Regex,
    /// Inside `[[ ]]`.
    Test,
    /// Where an assignment may stand: `name[` opens a subscript that may hold blanks and operators.
    First,
}

struct PendingDocument {
    index: usize,
    delimiter: Vec<u8>,
    expands: bool,
    strips_tabs: bool,
}

struct Reader<'a> {
    text: &'a [u8],
    places: Option<&'a [usize]>,
    dialect: Dialect,
    pos: usize,
    end: usize,
    depth: usize,
    fuel: usize,
    pending: Vec<PendingDocument>,
    documents: Vec<Document>,
}

const RESERVED: &[&[u8]] = &[
    b"if", b"then", b"else", b"elif", b"fi", b"do", b"done", b"case", b"esac", b"while", b"until", b"for",
    b"{", b"}", b"!",
];
const RESERVED_BASH: &[&[u8]] = &[b"select", b"function", b"coproc", b"[[", b"]]", b"time"];

fn is_meta(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b';' | b'&' | b'|' | b'<' | b'>' | b'(' | b')')
}

fn is_name(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|byte| !byte.is_ascii_digit()) && bytes.iter().all(|byte| is_name_byte(*byte))
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

impl Reader<'_> {
    // ---- bytes ----

    fn bash(&self) -> bool {
        self.dialect != Dialect::Dash
    }

    fn place(&self, pos: usize) -> usize {
        match self.places {
            None => pos,
            Some(places) => match places.get(pos) {
                Some(place) => *place,
                None => places.last().map_or(0, |place| place + 1),
            },
        }
    }

    fn span(&self, start: usize, end: usize) -> Span {
        if end > start {
            Span::new(self.place(start), self.place(end - 1) + 1)
        } else {
            Span::new(self.place(start), self.place(start))
        }
    }

    fn fail<T>(&self, what: &'static str) -> Read<T> {
        Err(Stop::Syntax { place: self.place(self.pos), what })
    }

    fn peek(&self) -> Option<u8> {
        (self.pos < self.end).then(|| self.text[self.pos])
    }

    fn peek_at(&self, ahead: usize) -> Option<u8> {
        let pos = self.pos + ahead;
        (pos < self.end).then(|| self.text[pos])
    }

    fn looking_at(&self, what: &[u8]) -> bool {
        self.text[self.pos..self.end].starts_with(what)
    }

    fn spend(&mut self, steps: usize) -> Read<()> {
        match self.fuel.checked_sub(steps) {
            Some(left) => {
                self.fuel = left;
                Ok(())
            }
            None => Err(Stop::Whole(UnparsedReason::TooCostly)),
        }
    }

    fn advance(&mut self, bytes: usize) -> Read<()> {
        self.spend(bytes)?;
        self.pos += bytes;
        Ok(())
    }

    fn expect(&mut self, byte: u8, what: &'static str) -> Read<()> {
        if self.peek() == Some(byte) { self.advance(1) } else { self.fail(what) }
    }

    fn deeper<T>(&mut self, inner: impl FnOnce(&mut Self) -> Read<T>) -> Read<T> {
        if self.depth >= MAX_DEPTH {
            return Err(Stop::Whole(UnparsedReason::TooDeep { limit: MAX_DEPTH }));
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }

    fn raw(&self, start: usize, end: usize) -> Derived {
        Derived {
            bytes: self.text[start..end].to_vec(),
            places: (start..end).map(|pos| self.place(pos)).collect(),
        }
    }

    /// Skips blanks, joined lines, and a comment if one starts here.
    fn blanks(&mut self) -> Read<()> {
        loop {
            match self.peek() {
                Some(b' ' | b'\t') => self.advance(1)?,
                Some(b'\\') if self.peek_at(1) == Some(b'\n') => self.advance(2)?,
                Some(b'#') => {
                    while self.peek().is_some_and(|byte| byte != b'\n') {
                        self.advance(1)?;
                    }
                }
                _ => return Ok(()),
            }
        }
    }

    /// Skips blanks and newlines; a newline brings in the here-documents announced on its line.
    fn lines(&mut self) -> Read<()> {
        loop {
            self.blanks()?;
            if self.peek() != Some(b'\n') {
                return Ok(());
            }
            self.newline()?;
        }
    }

    fn newline(&mut self) -> Read<()> {
        self.advance(1)?;
        self.read_documents()
    }

    /// The unquoted word at this place, if it could be a reserved one.
    fn reserved(&self) -> Option<&'static [u8]> {
        let rest = &self.text[self.pos..self.end];
        // Longer than any reserved word: no need to look further.
        let length = rest.iter().take(9).take_while(|byte| !is_meta(**byte)).count();
        let word = &rest[..length];
        let found = RESERVED.iter().find(|reserved| **reserved == word);
        let found = found.or_else(|| RESERVED_BASH.iter().find(|reserved| self.bash() && **reserved == word));
        found.copied()
    }

    fn at_reserved(&self, word: &[u8]) -> bool {
        self.reserved() == Some(word)
    }

    fn take_reserved(&mut self, word: &'static [u8], what: &'static str) -> Read<()> {
        if self.at_reserved(word) { self.advance(word.len()) } else { self.fail(what) }
    }

    // ---- lists ----

    fn list(&mut self, until: Until) -> Read<List> {
        let mut items = Vec::new();
        loop {
            self.lines()?;
            self.spend(1)?;
            if self.at_end_of(until)? {
                return Ok(List { items });
            }
            let and_or = self.and_or()?;
            self.blanks()?;
            let mut background = None;
            match self.peek() {
                Some(b'&') if self.peek_at(1) != Some(b'&') => {
                    background = Some(self.place(self.pos));
                    self.advance(1)?;
                }
                Some(b';') if !matches!(self.peek_at(1), Some(b';' | b'&')) => self.advance(1)?,
                Some(b'\n') | None => {}
                Some(b';') if until == Until::Arm => {}
                Some(b')') if until == Until::Paren => {}
                // After a compound command a reserved word may close the next one out without a separator.
                Some(_) if self.closes(until) => {}
                Some(_) => return self.fail("an operator or a word out of place"),
            }
            items.push(Item { and_or, background });
        }
    }

    /// `{ (a) }` and `if (a) then`: a reserved word right after a command that ended by itself.
    fn closes(&self, until: Until) -> bool {
        match until {
            Until::Words(words) => self.reserved().is_some_and(|word| words.contains(&word)),
            Until::Arm => self.at_reserved(b"esac"),
            Until::End | Until::Paren => false,
        }
    }

    fn at_end_of(&self, until: Until) -> Read<bool> {
        let Some(byte) = self.peek() else {
            return if until == Until::End { Ok(true) } else { self.fail("the text ends inside a command") };
        };
        Ok(match until {
            Until::End => false,
            Until::Paren => byte == b')',
            Until::Words(_) => self.closes(until),
            Until::Arm => byte == b';' || self.closes(until),
        })
    }

    /// A list that must hold a command.
    fn full_list(&mut self, until: Until) -> Read<List> {
        let list = self.list(until)?;
        if list.items.is_empty() { self.fail("a command is missing") } else { Ok(list) }
    }

    fn and_or(&mut self) -> Read<AndOr> {
        let first = self.pipeline()?;
        let mut rest = Vec::new();
        loop {
            self.blanks()?;
            if !(self.looking_at(b"&&") || self.looking_at(b"||")) {
                return Ok(AndOr { first, rest });
            }
            self.advance(2)?;
            self.lines()?;
            rest.push(self.pipeline()?);
        }
    }

    fn pipeline(&mut self) -> Read<Pipeline> {
        let start = self.pos;
        let mut negated = false;
        loop {
            self.blanks()?;
            if self.at_reserved(b"!") {
                self.advance(1)?;
                negated = !negated;
            } else if self.at_reserved(b"time") {
                self.advance(4)?;
                self.blanks()?;
                if self.looking_at(b"-p") && self.peek_at(2).is_none_or(is_meta) {
                    self.advance(2)?;
                }
            } else if self.bash() && self.looking_at(b"!(") {
                // With `extglob` off, as it is unless asked for, this is `!` and a subshell.
                self.advance(1)?;
                negated = !negated;
            } else {
                break;
            }
        }
        let mut stages = vec![self.command()?];
        loop {
            self.blanks()?;
            if self.peek() != Some(b'|') || self.peek_at(1) == Some(b'|') {
                break;
            }
            self.advance(1)?;
            if self.bash() && self.peek() == Some(b'&') {
                self.advance(1)?;
            }
            self.lines()?;
            stages.push(self.command()?);
        }
        let end = stages.last().map_or(start, |stage| stage.span.end);
        let span = Span::new(self.place(start), end);
        Ok(Pipeline { negated, stages, span })
    }

    // ---- commands ----

    fn command(&mut self) -> Read<Command> {
        self.deeper(Self::command_here)
    }

    fn command_here(&mut self) -> Read<Command> {
        self.blanks()?;
        let start = self.pos;
        let kind = match self.compound()? {
            Some(kind) => kind,
            None => return self.simple(start),
        };
        let mut end = self.pos;
        let mut redirects = Vec::new();
        loop {
            self.blanks()?;
            match self.redirect()? {
                Some(redirect) => redirects.push(redirect),
                None => break,
            }
            end = self.pos;
        }
        Ok(Command { kind, redirects, span: self.span(start, end) })
    }

    fn compound(&mut self) -> Read<Option<Kind>> {
        if self.peek() == Some(b'(') {
            if self.bash() && self.looking_at(b"((") {
                let (pos, fuel_before) = (self.pos, self.fuel);
                self.advance(2)?;
                if let Some(parts) = self.try_arithmetic(pos)? {
                    return Ok(Some(Kind::Arithmetic(parts)));
                }
                debug_assert!(self.fuel < fuel_before, "a second reading is paid for");
            }
            self.advance(1)?;
            let list = self.full_list(Until::Paren)?;
            self.expect(b')', "`)` is missing")?;
            return Ok(Some(Kind::Subshell(list)));
        }
        let Some(word) = self.reserved() else { return Ok(None) };
        let kind = match word {
            b"{" => Kind::Brace(self.braces()?),
            b"if" => self.if_clause()?,
            b"while" | b"until" => {
                self.advance(5)?;
                let condition = self.full_list(Until::Words(&[b"do"]))?;
                Kind::Loop { condition, body: self.do_group()? }
            }
            b"for" => self.for_clause(3)?,
            b"select" => self.for_clause(6)?,
            b"case" => self.case_clause()?,
            b"function" => {
                self.advance(8)?;
                self.blanks()?;
                let name = self.plain_word()?;
                self.blanks()?;
                if self.peek() == Some(b'(') {
                    self.advance(1)?;
                    self.blanks()?;
                    self.expect(b')', "`)` is missing")?;
                }
                self.function(name)?
            }
            b"coproc" => self.coprocess()?,
            b"[[" => self.test()?,
            _ => return self.fail("a reserved word out of place"),
        };
        Ok(Some(kind))
    }

    fn braces(&mut self) -> Read<List> {
        self.take_reserved(b"{", "`{` is missing")?;
        let list = self.full_list(Until::Words(&[b"}"]))?;
        self.take_reserved(b"}", "`}` is missing")?;
        Ok(list)
    }

    fn do_group(&mut self) -> Read<List> {
        self.take_reserved(b"do", "`do` is missing")?;
        let body = self.full_list(Until::Words(&[b"done"]))?;
        self.take_reserved(b"done", "`done` is missing")?;
        Ok(body)
    }

    fn if_clause(&mut self) -> Read<Kind> {
        self.advance(2)?;
        let mut arms = Vec::new();
        loop {
            let condition = self.full_list(Until::Words(&[b"then"]))?;
            self.take_reserved(b"then", "`then` is missing")?;
            let body = self.full_list(Until::Words(&[b"elif", b"else", b"fi"]))?;
            arms.push((condition, body));
            if !self.at_reserved(b"elif") {
                break;
            }
            self.advance(4)?;
        }
        let mut otherwise = None;
        if self.at_reserved(b"else") {
            self.advance(4)?;
            otherwise = Some(self.full_list(Until::Words(&[b"fi"]))?);
        }
        self.take_reserved(b"fi", "`fi` is missing")?;
        Ok(Kind::If { arms, otherwise })
    }

    fn for_clause(&mut self, keyword: usize) -> Read<Kind> {
        self.advance(keyword)?;
        self.blanks()?;
        if self.bash() && keyword == 3 && self.looking_at(b"((") {
            let before = self.pos;
            self.advance(2)?;
            let Some(parts) = self.try_arithmetic(before)? else { return self.fail("`))` is missing") };
            self.blanks()?;
            if self.peek() == Some(b';') {
                self.advance(1)?;
            }
            self.lines()?;
            let body = if self.at_reserved(b"{") { self.braces()? } else { self.do_group()? };
            return Ok(Kind::ArithmeticFor { parts, body });
        }
        let variable = self.plain_word()?;
        let mut words = Vec::new();
        self.lines()?;
        if self.looking_at(b"in") && self.peek_at(2).is_none_or(is_meta) {
            self.advance(2)?;
            loop {
                self.blanks()?;
                match self.peek() {
                    Some(b';' | b'\n') => break,
                    Some(byte) if !is_meta(byte) || self.at_substitution() => {
                        words.push(self.word(Mode::Plain)?)
                    }
                    _ => return self.fail("`do` is missing"),
                }
            }
        }
        self.blanks()?;
        if self.peek() == Some(b';') {
            self.advance(1)?;
        }
        self.lines()?;
        let body = if self.bash() && self.at_reserved(b"{") { self.braces()? } else { self.do_group()? };
        Ok(Kind::For { variable, words, body })
    }

    fn case_clause(&mut self) -> Read<Kind> {
        self.advance(4)?;
        self.blanks()?;
        let subject = self.argument()?;
        self.lines()?;
        if !(self.looking_at(b"in") && self.peek_at(2).is_none_or(is_meta)) {
            return self.fail("`in` is missing");
        }
        self.advance(2)?;
        let mut arms = Vec::new();
        loop {
            self.lines()?;
            if self.at_reserved(b"esac") {
                self.advance(4)?;
                return Ok(Kind::Case { subject, arms });
            }
            if self.peek() == Some(b'(') {
                self.advance(1)?;
                self.blanks()?;
            }
            let mut patterns = vec![self.argument()?];
            loop {
                self.blanks()?;
                match self.peek() {
                    Some(b'|') => {
                        self.advance(1)?;
                        self.blanks()?;
                        patterns.push(self.argument()?);
                    }
                    Some(b')') => break,
                    _ => return self.fail("`)` is missing after a pattern"),
                }
            }
            self.advance(1)?;
            let catches_all = patterns.iter().any(|pattern| {
                matches!(&pattern.parts[..], [Part::Literal { text, quoted: false }] if text.bytes == b"*")
            });
            let body = self.list(Until::Arm)?;
            let mut falls_through = false;
            if self.looking_at(b";;&") && self.bash() {
                falls_through = true;
                self.advance(3)?;
            } else if self.looking_at(b";;") {
                self.advance(2)?;
            } else if self.looking_at(b";&") && self.bash() {
                falls_through = true;
                self.advance(2)?;
            } else if !self.at_reserved(b"esac") {
                return self.fail("`;;` or `esac` is missing");
            }
            arms.push(Arm { patterns, body, catches_all, falls_through });
        }
    }

    fn function(&mut self, name: Vec<u8>) -> Read<Kind> {
        self.lines()?;
        let body = self.command()?;
        if self.dialect == Dialect::Bash
            && matches!(body.kind, Kind::Simple { .. } | Kind::Function { .. } | Kind::Coprocess { .. })
        {
            return self.fail("a function's body is missing");
        }
        Ok(Kind::Function { name, body: Rc::new(body) })
    }

    fn coprocess(&mut self) -> Read<Kind> {
        self.advance(6)?;
        self.blanks()?;
        let before = self.pos;
        let mut name = None;
        if self.reserved().is_none() && self.peek() != Some(b'(') {
            // A name only if a compound command follows; else it is the command itself.
            let length = self.text[self.pos..self.end].iter().take_while(|byte| is_name_byte(**byte)).count();
            let word = self.text[self.pos..self.pos + length].to_vec();
            self.advance(length)?;
            self.blanks()?;
            let opens = self.peek() == Some(b'(')
                || self
                    .reserved()
                    .is_some_and(|word| !matches!(word, b"}" | b"!" | b"time" | b"then" | b"do"));
            if length > 0 && opens && self.pos > before + length {
                name = Some(word);
            } else if length > 0 && self.reserved().is_some() && self.pos > before + length {
                return self.fail("a reserved word out of place");
            } else {
                self.pos = before;
            }
        }
        Ok(Kind::Coprocess { name, body: Box::new(self.command()?) })
    }

    fn test(&mut self) -> Read<Kind> {
        self.advance(2)?;
        let mut words = Vec::new();
        let mut mode = Mode::Test;
        loop {
            self.lines()?;
            match self.peek() {
                None => return self.fail("`]]` is missing"),
                Some(b']') if self.looking_at(b"]]") && self.peek_at(2).is_none_or(is_meta) => {
                    self.advance(2)?;
                    return Ok(Kind::Test(words));
                }
                Some(b'&' | b'|' | b'<' | b'>' | b'(' | b')')
                    if mode == Mode::Test && !self.at_substitution() =>
                {
                    if self.peek() == Some(b'&') && self.peek_at(1) != Some(b'&') {
                        return self.fail("a single `&` inside `[[`");
                    }
                    self.advance(if self.peek() == Some(b'&') { 2 } else { 1 })?;
                }
                Some(b';') => return self.fail("`;` inside `[[`"),
                Some(_) => {
                    let word = self.deeper(|reader| reader.word(mode))?;
                    let matches = word.literal().is_some_and(|text| text.bytes == b"=~");
                    mode = if matches && mode == Mode::Test { Mode::Regex } else { Mode::Test };
                    words.push(word);
                }
            }
        }
    }

    fn simple(&mut self, start: usize) -> Read<Command> {
        let mut assignments = Vec::new();
        let mut words: Vec<Word> = Vec::new();
        let mut redirects = Vec::new();
        let mut end = start;
        loop {
            self.blanks()?;
            if let Some(redirect) = self.redirect()? {
                redirects.push(redirect);
                end = self.pos;
                continue;
            }
            match self.peek() {
                Some(b'(') if words.len() == 1 && assignments.is_empty() && redirects.is_empty() => {
                    // In a string that is a script, an expansion may make up the name.
                    let composed = self.places.is_some().then(|| words[0].as_script());
                    let Some(name) = words[0].literal().or(composed) else {
                        return self.fail("`(` out of place");
                    };
                    let quoted = !matches!(&words[0].parts[..], [Part::Literal { quoted: false, .. }]);
                    let named = !quoted && is_name(&name.bytes) || self.places.is_some();
                    if self.dialect == Dialect::Dash && !named {
                        return self.fail("a function's name is not a name");
                    }
                    self.advance(1)?;
                    self.blanks()?;
                    self.expect(b')', "`)` is missing after a function's name")?;
                    let kind = self.function(name.bytes)?;
                    return Ok(Command { kind, redirects, span: self.span(start, self.pos) });
                }
                Some(byte) if !is_meta(byte) || self.at_substitution() => {
                    let mode = if words.first().is_none_or(declares) { Mode::First } else { Mode::Plain };
                    let word = self.word(mode)?;
                    end = self.pos;
                    if words.is_empty() && word.assigned_name().is_some() {
                        assignments.push(word);
                    } else {
                        words.push(word);
                    }
                }
                _ => break,
            }
        }
        if words.is_empty() && assignments.is_empty() && redirects.is_empty() {
            return self.fail("a command is missing");
        }
        Ok(Command { kind: Kind::Simple { assignments, words }, redirects, span: self.span(start, end) })
    }

    // ---- redirections ----

    /// Length of the number before a redirection. POSIX and dash know one digit.
    fn descriptor_digits(&self) -> usize {
        let most = if self.bash() { 10 } else { 1 };
        let digits =
            self.text[self.pos..self.end].iter().take(most).take_while(|byte| byte.is_ascii_digit()).count();
        if matches!(self.peek_at(digits), Some(b'<' | b'>')) { digits } else { 0 }
    }

    fn redirect(&mut self) -> Read<Option<Redirect>> {
        let digits = self.descriptor_digits();
        let both = self.dialect == Dialect::Bash && digits == 0 && self.looking_at(b"&>");
        let operator = self.peek_at(digits);
        if !both && !matches!(operator, Some(b'<' | b'>')) {
            return Ok(None);
        }
        if digits == 0 && self.at_substitution() {
            return Ok(None);
        }
        let descriptor = &self.text[self.pos..self.pos + digits];
        let onto_stdin = descriptor == b"0" || (digits == 0 && operator == Some(b'<'));
        self.advance(digits)?;
        let operators: &[&[u8]] =
            &[b"&>>", b"&>", b"<<<", b"<<-", b"<<", b"<&", b"<>", b"<", b">>", b">&", b">|", b">"];
        let found = operators.iter().find(|operator| {
            self.looking_at(operator) && (self.bash() || !matches!(**operator, b"<<<" | b"&>" | b"&>>"))
        });
        let Some(operator) = found.copied() else { return self.fail("an unknown redirection") };
        self.advance(operator.len())?;
        self.blanks()?;
        if self.descriptor_digits() > 0 {
            // `>2>&1`: to dash the `2` belongs to the next redirection, to bash it may be a file.
            return self.fail("a word is missing after a redirection");
        }
        let target = match operator {
            b">&" | b"<&" if self.dialect != Dialect::Bash => {
                let word = self.argument()?;
                let plain = |bytes: &[u8]| bytes == b"-" || bytes.iter().all(u8::is_ascii_digit);
                if word.literal().is_some_and(|text| !plain(&text.bytes)) {
                    return self.fail("a descriptor is missing");
                }
                Target::Word(word)
            }
            b"<<" | b"<<-" => self.announce(operator == b"<<-")?,
            b"<<<" => Target::HereString(self.argument()?),
            _ => Target::Word(self.argument()?),
        };
        Ok(Some(Redirect { feeds_stdin: onto_stdin, target }))
    }

    /// Notes a here-document; its body comes after the next newline.
    fn announce(&mut self, strips_tabs: bool) -> Read<Target> {
        let start = self.pos;
        let word = self.argument()?;
        let raw = &self.text[start..self.pos];
        let expands = !raw.iter().any(|byte| matches!(byte, b'\'' | b'"' | b'\\'));
        // The delimiter is never expanded, only unquoted.
        let delimiter = word.as_script().bytes;
        let index = self.documents.len();
        self.documents.push(Document::default());
        self.pending.push(PendingDocument { index, delimiter, expands, strips_tabs });
        Ok(Target::HereDocument(index))
    }

    fn read_documents(&mut self) -> Read<()> {
        for document in std::mem::take(&mut self.pending) {
            let start = self.pos;
            let (body_end, next) = self.find_delimiter(&document)?;
            let parts = if document.expands {
                let end = std::mem::replace(&mut self.end, body_end);
                let parts = self.deeper(Self::document_parts);
                self.end = end;
                parts?
            } else {
                vec![Part::Literal { text: self.raw(start, body_end), quoted: true }]
            };
            self.documents[document.index] = Document { parts };
            self.pos = next;
        }
        Ok(())
    }

    /// The end of a body and the start of what follows. A body may end with the text, as in the shells.
    fn find_delimiter(&mut self, document: &PendingDocument) -> Read<(usize, usize)> {
        let mut line_start = self.pos;
        while line_start < self.end {
            let rest = &self.text[line_start..self.end];
            let length = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
            self.spend(length + 1)?;
            let mut line = &rest[..length];
            while document.strips_tabs && line.first() == Some(&b'\t') {
                line = &line[1..];
            }
            if line == document.delimiter {
                return Ok((line_start, (line_start + length + 1).min(self.end)));
            }
            line_start += length + 1;
        }
        Ok((self.end, self.end))
    }

    fn document_parts(&mut self) -> Read<Vec<Part>> {
        let mut parts = Vec::new();
        let mut text = Derived::default();
        while let Some(byte) = self.peek() {
            match byte {
                b'$' | b'`' => self.expansion(&mut parts, &mut text, true)?,
                b'\\' => match self.peek_at(1) {
                    Some(b'\n') => self.advance(2)?,
                    Some(next @ (b'$' | b'`' | b'\\')) => {
                        text.push(next, self.place(self.pos));
                        self.advance(2)?;
                    }
                    _ => {
                        text.push(byte, self.place(self.pos));
                        self.advance(1)?;
                    }
                },
                _ => {
                    text.push(byte, self.place(self.pos));
                    self.advance(1)?;
                }
            }
        }
        flush(&mut parts, &mut text, true);
        Ok(parts)
    }

    // ---- words ----

    fn at_substitution(&self) -> bool {
        self.bash() && (self.looking_at(b"<(") || self.looking_at(b">("))
    }

    /// A word that must be there.
    fn argument(&mut self) -> Read<Word> {
        match self.peek() {
            Some(byte) if !is_meta(byte) || self.at_substitution() => self.word(Mode::Plain),
            _ => self.fail("a word is missing"),
        }
    }

    fn plain_word(&mut self) -> Read<Vec<u8>> {
        let word = self.argument()?;
        match word.literal() {
            Some(text) => Ok(text.bytes),
            None => self.fail("a plain name is missing"),
        }
    }

    fn word(&mut self, mode: Mode) -> Read<Word> {
        let start = self.pos;
        let mut parts = Vec::new();
        let mut text = Derived::default();
        let mut parens = 0_usize;
        while let Some(byte) = self.peek() {
            match byte {
                b'(' if mode == Mode::Regex => {
                    parens += 1;
                    text.push(byte, self.place(self.pos));
                    self.advance(1)?;
                }
                b')' if mode == Mode::Regex && parens > 0 => {
                    parens -= 1;
                    text.push(byte, self.place(self.pos));
                    self.advance(1)?;
                }
                b'|' | b'<' | b'>' | b';' | b'&' if mode == Mode::Regex && (parens > 0 || byte == b'|') => {
                    if byte == b'|' && parens == 0 && self.peek_at(1) == Some(b'|') {
                        break;
                    }
                    text.push(byte, self.place(self.pos));
                    self.advance(1)?;
                }
                b' ' | b'\t' if mode == Mode::Regex && parens > 0 => {
                    text.push(byte, self.place(self.pos));
                    self.advance(1)?;
                }
                b'(' if self.bash() && self.pos > start && ends_in_glob_mark(&text, mode) => {
                    let from = self.pos;
                    self.advance(1)?;
                    let inner = self.deeper(Self::glob_group)?;
                    flush(&mut parts, &mut text, false);
                    parts.push(Part::Glob { inner, raw: self.raw(from, self.pos) });
                }
                b'[' if mode == Mode::First && self.bash() && parts.is_empty() && is_name(&text.bytes) => {
                    let from = self.pos;
                    self.advance(1)?;
                    let inner = self.deeper(Self::bracketed)?;
                    flush(&mut parts, &mut text, false);
                    parts.push(Part::Glob { inner, raw: self.raw(from, self.pos) });
                }
                b'(' if self.bash() && mode == Mode::First && opens_array(&parts, &text) => {
                    self.advance(1)?;
                    flush(&mut parts, &mut text, false);
                    parts.push(Part::Array(self.deeper(Self::array)?));
                }
                b'<' | b'>' if self.at_substitution() => {
                    let from = self.pos;
                    flush(&mut parts, &mut text, false);
                    self.advance(1)?;
                    let list = self.deeper(|reader| reader.substituted(true))?;
                    parts.push(Part::Process { list, raw: self.raw(from, self.pos) });
                }
                _ if is_meta(byte) => break,
                b'\\' => match self.peek_at(1) {
                    Some(b'\n') => self.advance(2)?,
                    Some(next) => {
                        flush(&mut parts, &mut text, false);
                        text.push(next, self.place(self.pos));
                        self.advance(2)?;
                        flush(&mut parts, &mut text, true);
                    }
                    None => return self.fail("the text ends in a backslash"),
                },
                b'\'' => {
                    flush(&mut parts, &mut text, false);
                    self.single_quoted(&mut text)?;
                    flush_quoted(&mut parts, &mut text);
                }
                b'"' => {
                    flush(&mut parts, &mut text, false);
                    self.deeper(|reader| reader.double_quoted(&mut parts))?;
                }
                b'$' if self.bash() && self.peek_at(1) == Some(b'\'') => {
                    flush(&mut parts, &mut text, false);
                    self.advance(1)?;
                    self.ansi_quoted(&mut text)?;
                    flush_quoted(&mut parts, &mut text);
                }
                b'$' if self.bash() && self.peek_at(1) == Some(b'"') => self.advance(1)?,
                b'$' | b'`' => {
                    let before = parts.len();
                    self.expansion_unquoted(&mut parts, &mut text)?;
                    debug_assert!(parts.len() >= before);
                }
                _ => {
                    text.push(byte, self.place(self.pos));
                    self.advance(1)?;
                }
            }
        }
        if parens > 0 {
            return self.fail("`)` is missing in a pattern");
        }
        flush(&mut parts, &mut text, false);
        if self.pos == start {
            return self.fail("a word is missing");
        }
        let span = self.span(start, self.pos);
        Ok(Word { parts, start: span.start, end: span.end })
    }

    fn single_quoted(&mut self, text: &mut Derived) -> Read<()> {
        self.advance(1)?;
        loop {
            match self.peek() {
                None => return self.fail("`'` is missing"),
                Some(b'\'') => return self.advance(1),
                Some(byte) => {
                    text.push(byte, self.place(self.pos));
                    self.advance(1)?;
                }
            }
        }
    }

    /// `$'…'`, with the escapes that can spell a word.
    fn ansi_quoted(&mut self, text: &mut Derived) -> Read<()> {
        self.advance(1)?;
        loop {
            let place = self.place(self.pos);
            match self.peek() {
                None => return self.fail("`'` is missing"),
                Some(b'\'') => return self.advance(1),
                Some(b'\\') => {
                    let Some(next) = self.peek_at(1) else { return self.fail("`'` is missing") };
                    self.advance(2)?;
                    match next {
                        b'n' => text.push(b'\n', place),
                        b't' => text.push(b'\t', place),
                        b'r' => text.push(b'\r', place),
                        b'a' => text.push(7, place),
                        b'b' => text.push(8, place),
                        b'e' | b'E' => text.push(27, place),
                        b'f' => text.push(12, place),
                        b'v' => text.push(11, place),
                        b'x' => self.numeral(text, place, 16, 2, 0)?,
                        b'u' => self.numeral(text, place, 16, 4, 0)?,
                        b'U' => self.numeral(text, place, 16, 8, 0)?,
                        b'0'..=b'7' => self.numeral(text, place, 8, 2, u32::from(next - b'0'))?,
                        b'c' => {
                            let Some(control) = self.peek() else { return self.fail("`'` is missing") };
                            text.push(control & 0x1f, place);
                            self.advance(1)?;
                        }
                        b'\\' | b'\'' | b'"' | b'?' => text.push(next, place),
                        _ => {
                            text.push(b'\\', place);
                            text.push(next, place);
                        }
                    }
                }
                Some(byte) => {
                    text.push(byte, place);
                    self.advance(1)?;
                }
            }
        }
    }

    fn numeral(&mut self, text: &mut Derived, place: usize, radix: u32, most: usize, first: u32) -> Read<()> {
        let mut value = first;
        for _ in 0..most {
            let Some(digit) = self.peek().and_then(|byte| char::from(byte).to_digit(radix)) else { break };
            value = value.wrapping_mul(radix).wrapping_add(digit);
            self.advance(1)?;
        }
        if most > 2 {
            let mut buffer = [0; 4];
            let char = char::from_u32(value).unwrap_or(char::REPLACEMENT_CHARACTER);
            for byte in char.encode_utf8(&mut buffer).bytes() {
                text.push(byte, place);
            }
        } else {
            text.push(value.to_le_bytes()[0], place);
        }
        Ok(())
    }

    fn double_quoted(&mut self, parts: &mut Vec<Part>) -> Read<()> {
        self.advance(1)?;
        let before = parts.len();
        let mut text = Derived::default();
        loop {
            match self.peek() {
                None => return self.fail("`\"` is missing"),
                Some(b'"') => {
                    self.advance(1)?;
                    if parts.len() == before {
                        flush_quoted(parts, &mut text);
                    } else {
                        flush(parts, &mut text, true);
                    }
                    return Ok(());
                }
                Some(b'$' | b'`') => self.expansion(parts, &mut text, true)?,
                Some(b'\\') => match self.peek_at(1) {
                    Some(b'\n') => self.advance(2)?,
                    Some(next @ (b'$' | b'`' | b'"' | b'\\')) => {
                        text.push(next, self.place(self.pos));
                        self.advance(2)?;
                    }
                    _ => {
                        text.push(b'\\', self.place(self.pos));
                        self.advance(1)?;
                    }
                },
                Some(byte) => {
                    text.push(byte, self.place(self.pos));
                    self.advance(1)?;
                }
            }
        }
    }

    /// Elements of `name=( … )`.
    fn array(&mut self) -> Read<Vec<Word>> {
        let mut words = Vec::new();
        loop {
            self.lines()?;
            match self.peek() {
                Some(b')') => {
                    self.advance(1)?;
                    return Ok(words);
                }
                None => return self.fail("`)` is missing after an array"),
                Some(_) => words.push(self.argument()?),
            }
        }
    }

    /// The inside of `@( … )` up to and with its parenthesis.
    fn glob_group(&mut self) -> Read<Vec<Part>> {
        let mut parts = Vec::new();
        loop {
            match self.peek() {
                None => return self.fail("`)` is missing in a pattern"),
                Some(b')') => {
                    self.advance(1)?;
                    return Ok(parts);
                }
                Some(b'(') => {
                    self.advance(1)?;
                    parts.extend(self.deeper(Self::glob_group)?);
                }
                Some(_) => self.quoted_or_byte(&mut parts, false)?,
            }
        }
    }

    /// One step through text in which only quotes and expansions matter. The bytes are dropped.
    fn quoted_or_byte(&mut self, parts: &mut Vec<Part>, single_is_plain: bool) -> Read<()> {
        let mut text = Derived::default();
        match self.peek() {
            Some(b'\'') if !single_is_plain => self.single_quoted(&mut text),
            Some(b'"') => self.deeper(|reader| reader.double_quoted(parts)),
            Some(b'\\') => self.advance(if self.peek_at(1).is_some() { 2 } else { 1 }),
            Some(b'$') if self.bash() && !single_is_plain && self.peek_at(1) == Some(b'\'') => {
                self.advance(1)?;
                self.ansi_quoted(&mut text)
            }
            Some(b'$' | b'`') => self.expansion(parts, &mut text, single_is_plain),
            Some(b'<' | b'>') if !single_is_plain && self.at_substitution() => {
                let from = self.pos;
                self.advance(1)?;
                let list = self.deeper(|reader| reader.substituted(true))?;
                parts.push(Part::Process { list, raw: self.raw(from, self.pos) });
                Ok(())
            }
            Some(_) => self.advance(1),
            None => self.fail("the text ends inside a word"),
        }
    }

    // ---- expansions ----

    fn expansion_unquoted(&mut self, parts: &mut Vec<Part>, text: &mut Derived) -> Read<()> {
        self.expansion_with(parts, text, false)
    }

    fn expansion(&mut self, parts: &mut Vec<Part>, text: &mut Derived, quoted: bool) -> Read<()> {
        self.expansion_with(parts, text, quoted)
    }

    /// Reads what starts with `$` or a backquote. A `$` that starts nothing is itself.
    fn expansion_with(&mut self, parts: &mut Vec<Part>, text: &mut Derived, quoted: bool) -> Read<()> {
        let from = self.pos;
        if self.peek() == Some(b'`') {
            let list = self.deeper(Self::backquoted)?;
            flush(parts, text, quoted);
            parts.push(Part::Command { list, raw: self.raw(from, self.pos) });
            return Ok(());
        }
        match self.peek_at(1) {
            Some(b'(') => {
                if self.peek_at(2) == Some(b'(') {
                    self.advance(3)?;
                    if let Some(inner) = self.try_arithmetic(from)? {
                        flush(parts, text, quoted);
                        parts.push(Part::Arithmetic { inner, raw: self.raw(from, self.pos) });
                        return Ok(());
                    }
                }
                self.advance(1)?;
                let list = self.deeper(|reader| reader.substituted(false))?;
                flush(parts, text, quoted);
                parts.push(Part::Command { list, raw: self.raw(from, self.pos) });
            }
            Some(b'[') if self.bash() => {
                self.advance(2)?;
                let inner = self.deeper(|reader| reader.bracketed())?;
                flush(parts, text, quoted);
                parts.push(Part::Arithmetic { inner, raw: self.raw(from, self.pos) });
            }
            Some(b'{') => {
                self.advance(2)?;
                let (name, inner) = self.deeper(|reader| reader.parameter(quoted))?;
                flush(parts, text, quoted);
                parts.push(Part::Parameter { name, inner, raw: self.raw(from, self.pos) });
            }
            Some(byte) if is_name_byte(byte) || b"@*#?-$!".contains(&byte) => {
                let rest = &self.text[self.pos + 1..self.end];
                let long = byte.is_ascii_alphabetic() || byte == b'_';
                let length = if long { rest.iter().take_while(|b| is_name_byte(**b)).count() } else { 1 };
                let name = rest[..length].to_vec();
                self.advance(1 + length)?;
                flush(parts, text, quoted);
                parts.push(Part::Parameter { name, inner: Vec::new(), raw: self.raw(from, self.pos) });
            }
            _ => {
                text.push(b'$', self.place(self.pos));
                self.advance(1)?;
            }
        }
        Ok(())
    }

    /// `( list )` of a command or process substitution, from its parenthesis on.
    fn substituted(&mut self, must_hold: bool) -> Read<List> {
        self.expect(b'(', "`(` is missing")?;
        // Documents announced outside have their bodies outside.
        let outer = std::mem::take(&mut self.pending);
        let list = self.list(Until::Paren)?;
        if !self.pending.is_empty() {
            return self.fail("a here-document's body is missing inside a substitution");
        }
        self.pending = outer;
        self.expect(b')', "`)` is missing")?;
        if must_hold && list.items.is_empty() { self.fail("a command is missing") } else { Ok(list) }
    }

    /// A backquoted command: its backslashes are taken away once, then it is a script of its own.
    fn backquoted(&mut self) -> Read<List> {
        self.advance(1)?;
        let mut inner = Derived::default();
        loop {
            let place = self.place(self.pos);
            match self.peek() {
                None => return self.fail("a backquote is missing"),
                Some(b'`') => {
                    self.advance(1)?;
                    break;
                }
                Some(b'\\') => match self.peek_at(1) {
                    Some(next @ (b'`' | b'\\' | b'$')) => {
                        inner.push(next, place);
                        self.advance(2)?;
                    }
                    _ => {
                        inner.push(b'\\', place);
                        self.advance(1)?;
                    }
                },
                Some(byte) => {
                    inner.push(byte, place);
                    self.advance(1)?;
                }
            }
        }
        // The inner reading is paid for by this budget, so that nesting cannot multiply it.
        let mut reader = Reader {
            text: &inner.bytes,
            places: Some(&inner.places),
            dialect: self.dialect,
            pos: 0,
            end: inner.bytes.len(),
            depth: self.depth,
            fuel: self.fuel,
            pending: Vec::new(),
            documents: std::mem::take(&mut self.documents),
        };
        let list = reader.list(Until::End);
        let rest = if reader.pos < reader.end {
            reader.fail("a word or operator that nothing opened")
        } else {
            Ok(())
        };
        let documents = reader.read_documents();
        self.fuel = reader.fuel;
        self.documents = reader.documents;
        let list = list?;
        rest?;
        documents?;
        Ok(list)
    }

    /// After `((`: the parts up to `))`, or, with the reader set back to `from`, nothing when the parentheses
    /// show that these were two subshells.
    fn try_arithmetic(&mut self, from: usize) -> Read<Option<Vec<Part>>> {
        let result = self.deeper(Self::arithmetic);
        match result {
            Ok(Some(parts)) => Ok(Some(parts)),
            Ok(None) | Err(Stop::Syntax { .. }) => {
                self.pos = from;
                Ok(None)
            }
            Err(stop) => Err(stop),
        }
    }

    fn arithmetic(&mut self) -> Read<Option<Vec<Part>>> {
        let mut parts = Vec::new();
        let mut parens = 0_usize;
        loop {
            match self.peek() {
                None => return Ok(None),
                Some(b'(') => {
                    parens += 1;
                    self.advance(1)?;
                }
                Some(b')') if parens > 0 => {
                    parens -= 1;
                    self.advance(1)?;
                }
                Some(b')') if self.peek_at(1) == Some(b')') => {
                    self.advance(2)?;
                    return Ok(Some(parts));
                }
                Some(b')') => return Ok(None),
                // `<(` in arithmetic is "less than" and a parenthesis.
                Some(b'<' | b'>') => self.advance(1)?,
                Some(_) => self.quoted_or_byte(&mut parts, false)?,
            }
        }
    }

    fn bracketed(&mut self) -> Read<Vec<Part>> {
        let mut parts = Vec::new();
        let mut brackets = 0_usize;
        loop {
            match self.peek() {
                None => return self.fail("`]` is missing"),
                Some(b'[') => {
                    brackets += 1;
                    self.advance(1)?;
                }
                Some(b']') if brackets == 0 => {
                    self.advance(1)?;
                    return Ok(parts);
                }
                Some(b']') => {
                    brackets -= 1;
                    self.advance(1)?;
                }
                Some(b'<' | b'>') => self.advance(1)?,
                Some(_) => self.quoted_or_byte(&mut parts, false)?,
            }
        }
    }

    /// After `${`: the name and the parts of whatever follows it, up to and with `}`.
    fn parameter(&mut self, quoted: bool) -> Read<(Vec<u8>, Vec<Part>)> {
        if matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'|' | b'(')) {
            // `${ cmd; }` runs a command in this shell (bash 5.3); we do not read it.
            return self.fail("a parameter's name is missing");
        }
        if matches!(self.peek(), Some(b'!' | b'#')) && self.peek_at(1).is_some_and(|b| b != b'}') {
            self.advance(1)?;
        }
        let start = self.pos;
        while self.peek().is_some_and(is_name_byte) {
            self.advance(1)?;
        }
        if self.pos == start && self.peek().is_some_and(|byte| b"@*#?-$!".contains(&byte)) {
            self.advance(1)?;
        }
        let name = self.text[start..self.pos].to_vec();
        let mut parts = Vec::new();
        if self.peek() == Some(b'[') {
            self.advance(1)?;
            parts.extend(self.deeper(|reader| reader.bracketed())?);
        }
        // In a string that is a script, an expansion may yet complete the name.
        let composed = self.places.is_some() && self.peek() == Some(b'$');
        if !composed && !self.peek().is_some_and(|byte| b"}:-=?+#%/^,@*".contains(&byte)) {
            return self.fail("`}` is missing");
        }
        // Inside double quotes a single quote quotes only in the patterns of `#`, `%`, `/`, `^` and `,`.
        let operator = if self.peek() == Some(b':') { self.peek_at(1) } else { self.peek() };
        let single_is_plain = quoted && matches!(operator, Some(b'-' | b'=' | b'?' | b'+'));
        loop {
            match self.peek() {
                None => return self.fail("`}` is missing"),
                Some(b'}') => {
                    self.advance(1)?;
                    return Ok((name, parts));
                }
                Some(_) => self.quoted_or_byte(&mut parts, single_is_plain)?,
            }
        }
    }
}

/// Builtins whose arguments are assignments, arrays included.
fn declares(program: &Word) -> bool {
    let names: &[&[u8]] =
        &[b"declare", b"typeset", b"local", b"export", b"readonly", b"eval", b"let", b"alias"];
    program.literal().is_some_and(|text| names.contains(&text.bytes.as_slice()))
}

fn flush(parts: &mut Vec<Part>, text: &mut Derived, quoted: bool) {
    if !text.bytes.is_empty() {
        parts.push(Part::Literal { text: std::mem::take(text), quoted });
    }
}

/// Like `flush`, but an empty pair of quotes is a part too: `''` is a word.
fn flush_quoted(parts: &mut Vec<Part>, text: &mut Derived) {
    parts.push(Part::Literal { text: std::mem::take(text), quoted: true });
}

fn ends_in_glob_mark(text: &Derived, mode: Mode) -> bool {
    mode != Mode::Regex && matches!(text.bytes.last(), Some(b'?' | b'*' | b'+' | b'@' | b'!'))
}

/// `name=(` and `name+=(`, right after the sign.
fn opens_array(parts: &[Part], text: &Derived) -> bool {
    if text.bytes.last() != Some(&b'=') {
        return false;
    }
    let first = match parts.first() {
        Some(Part::Literal { text, quoted: false }) => &text.bytes,
        Some(_) => return false,
        None => &text.bytes,
    };
    first.first().is_some_and(|byte| byte.is_ascii_alphabetic() || *byte == b'_')
}

/// Runs `work`, which reads `bytes` bytes, on a stack that the depth limit cannot exhaust. Only touched pages cost
/// memory.
///
/// A panic in it is caught, as is a thread that cannot be started: both are `None`.
pub(crate) fn on_big_stack<T: Send>(bytes: usize, work: impl FnOnce() -> T + Send) -> Option<T> {
    const STACK_BYTES: usize = 128 * 1024 * 1024;
    // What is this short cannot nest deep enough for any stack to matter, and most command lines are: a thread of
    // its own would be a good part of what starting a command costs.
    const SHORT: usize = 128;
    if bytes <= SHORT {
        return std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).ok();
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("outlast-shell".to_owned())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, work)
            .ok()?;
        thread.join().ok()
    })
}
