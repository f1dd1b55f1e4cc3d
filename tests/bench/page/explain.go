package main

import (
	_ "embed"
	"strings"
)

//go:embed explain.md
var explainText string

// explanations are texts by item, and by "WORK: ITEM".
type explanations map[string]string

// explain reads what is between headings of the second rank.
func explain(text string) explanations {
	e := explanations{}
	for _, section := range strings.Split("\n"+text, "\n## ")[1:] {
		name, words, _ := strings.Cut(section, "\n")
		e[strings.TrimSpace(name)] = strings.TrimSpace(words)
	}
	return e
}
