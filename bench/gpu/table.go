// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// measured is a row of the table: values by who measured them.
type measured struct {
	name, unit string
	values     map[string]float64
}

// table prints what the RESULT lines of files say, and our share of each peer's rate.
func table(w io.Writer, files []string) error {
	if len(files) == 0 {
		return fmt.Errorf("want files with lines RESULT")
	}
	var rows []*measured
	var peers []string
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		lines := bufio.NewScanner(f)
		for n := 1; lines.Scan(); n++ {
			field := strings.Fields(lines.Text())
			if len(field) == 0 || field[0] != "RESULT" {
				continue
			}
			var value float64
			if len(field) == 5 {
				value, err = strconv.ParseFloat(field[3], 64)
			}
			if len(field) != 5 || err != nil {
				f.Close()
				return fmt.Errorf("%s:%d: %q: want RESULT row who value unit", name, n, lines.Text())
			}
			at := slices.IndexFunc(rows, func(r *measured) bool { return r.name == field[1] })
			if at < 0 {
				at, rows = len(rows), append(rows, &measured{field[1], field[4], map[string]float64{}})
			}
			rows[at].values[field[2]] = value
			if field[2] != "lockstep" && !slices.Contains(peers, field[2]) {
				peers = append(peers, field[2])
			}
		}
		f.Close()
		if err := lines.Err(); err != nil {
			return err
		}
	}
	fmt.Fprint(w, "| row | unit | lockstep |")
	for _, p := range peers {
		fmt.Fprintf(w, " %s | ours/%s |", p, p)
	}
	fmt.Fprint(w, "\n|---|---|---:|", strings.Repeat("---:|---:|", len(peers)), "\n")
	for _, r := range rows {
		fmt.Fprintf(w, "| %s | %s | %s |", r.name, r.unit, r.cell("lockstep"))
		for _, p := range peers {
			ratio := ""
			ours, both := r.values["lockstep"]
			if theirs, ok := r.values[p]; ok && both && theirs != 0 {
				ratio = fmt.Sprintf("%.2f", ours/theirs)
			}
			fmt.Fprintf(w, " %s | %s |", r.cell(p), ratio)
		}
		fmt.Fprintln(w)
	}
	return nil
}

func (r *measured) cell(who string) string {
	v, ok := r.values[who]
	if !ok {
		return ""
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}
