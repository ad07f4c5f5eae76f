-- The chosen offers in full, with the labels of the taxonomy.
WITH wanted AS (
  SELECT row_id, MIN(CASE WHEN pool = 'transfer' THEN NULL ELSE stratum END) AS new_label
  FROM chosen
  GROUP BY row_id
)
SELECT DISTINCT
  l.row_id, l.offer_id, l.shop_id, l.language, l.title, l.description, l.category_path, l.brand,
  w.new_label AS label, l.subcategory, l.cluster, l.source
FROM lake AS l JOIN wanted AS w ON w.row_id = l.row_id
