// Package pinged puts into words what smcgw ping found: a line for each connection
// ([Line]), and a summary that explains every reason once ([Summary]).
package pinged
