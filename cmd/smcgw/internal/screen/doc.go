// Package screen lays out what smcgw prints for people: tables, paragraphs, the progress of long work, and a view that
// is redrawn. A terminal gets colours, lines of at most [Columns] and shortened cells; a file or a pipe gets whole
// cells.
package screen
