package screen

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Listing is a table.
type Listing struct {
	// Rows begin with the header. Empty cells become "-", so that every row has as many fields as the header.
	Rows [][]string
	// Wide lists columns that are shown only if All is set. Nothing is shortened or wrapped then.
	Wide []string
	All  bool
	// Spare lists columns that are omitted, in this order, on a terminal that is too narrow, before cells are shortened;
	// the columns in one string are omitted together.
	Spare []string
	// Prose means that the last column is text, which a terminal wraps.
	Prose    bool
	NoHeader bool
}

const (
	gap      = 2 // between columns
	leastCut = 8 // minimum width of a shortened cell
	below    = 4 // indentation of text that does not fit beside its row
)

// List prints a table.
func (s *Screen) List(l Listing) error {
	rows := l.visible()
	if len(rows) == 0 {
		return nil
	}
	widths := widthsOf(rows, l.NoHeader)
	if s.Terminal() && !l.All {
		for i := 0; i < len(l.Spare) && total(widths) > s.columns(); i++ {
			l.Wide = append(slices.Clone(l.Wide), strings.Fields(l.Spare[i])...)
			rows = l.visible()
			widths = widthsOf(rows, l.NoHeader)
		}
		s.fit(rows, widths, l.Prose)
	}
	var b strings.Builder
	for i, row := range rows {
		if i == 0 && l.NoHeader {
			continue
		}
		b.WriteString(s.row(row, widths, l, i == 0))
	}
	_, err := s.out.Write([]byte(b.String()))
	return err
}

// visible returns the rows without the columns that are not shown.
func (l Listing) visible() [][]string {
	if len(l.Rows) == 0 {
		return nil
	}
	header := l.Rows[0]
	rows := make([][]string, 0, len(l.Rows))
	for _, from := range l.Rows {
		row := make([]string, 0, len(from))
		for i, cell := range from {
			if !l.All && slices.Contains(l.Wide, header[i]) {
				continue
			}
			if cell = Printable(cell); cell == "" {
				cell = "-"
			}
			row = append(row, cell)
		}
		rows = append(rows, row)
	}
	return rows
}

func widthsOf(rows [][]string, noHeader bool) []int {
	widths := make([]int, len(rows[0]))
	for i, row := range rows {
		if i == 0 && noHeader {
			continue
		}
		for j, cell := range row {
			widths[j] = max(widths[j], utf8.RuneCountInString(cell))
		}
	}
	return widths
}

// fit shortens the cells of the widest columns until a line fits.
func (s *Screen) fit(rows [][]string, widths []int, prose bool) {
	n := len(widths)
	if prose {
		n--
	}
	for total(widths[:n]) > s.columns() {
		widest := 0
		for j := range widths[:n] {
			if widths[j] > widths[widest] {
				widest = j
			}
		}
		if widths[widest] <= leastCut {
			break
		}
		widths[widest]--
	}
	for _, row := range rows {
		for j := range row[:n] {
			row[j] = cut(row[j], widths[j])
		}
	}
}

func total(widths []int) int {
	sum := -gap
	for _, w := range widths {
		sum += w + gap
	}
	return sum
}

// cut removes the middle of a cell that is too long: addresses differ at their ends.
func cut(cell string, width int) string {
	r := []rune(cell)
	if len(r) <= width {
		return cell
	}
	head := (width - 1) / 2
	return string(r[:head]) + "…" + string(r[len(r)-(width-1-head):])
}

func (s *Screen) row(row []string, widths []int, l Listing, header bool) string {
	var b strings.Builder
	at := 0
	for j, cell := range row {
		last := j == len(row)-1
		if last && l.Prose && !l.All {
			if s.Terminal() && !header && at+utf8.RuneCountInString(cell) > s.columns() && s.columns()-at < leastText {
				b.WriteString("\n" + strings.Repeat(" ", below))
				at = below
			}
			cell = s.Hang(cell, at)
		}
		style := words[cell]
		if header {
			style = Title
		}
		b.WriteString(s.Paint(style, cell))
		if !last {
			b.WriteString(strings.Repeat(" ", widths[j]-utf8.RuneCountInString(cell)+gap))
			at += widths[j] + gap
		}
	}
	b.WriteByte('\n')
	return b.String()
}
