{{- define "smcgw.selector" -}}
app.kubernetes.io/name: smcgw
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "smcgw.labels" -}}
{{ include "smcgw.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}
{{- define "smcgw.config" -}}
{{- $own := dict "cgroup_path" "/host/cgroup" }}
{{- if .Values.pskSecret }}{{ $own = merge $own (dict "security" (dict "psk_file" "/etc/smcgw-psk/psk")) }}{{ end }}
{{- toYaml (merge $own .Values.config (dict "in_process" (dict "enabled" "off"))) }}
{{- end }}
